"""Families: distributions of problems to train a policy on, or to test it on. Legend: N ops, D devices.

A problem is a workload of random size on a random machine (hsdag.runtime.platforms.drawn); all costs are analytic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.models import ModelSpec, Workload, find_model, find_workload
from hsdag.models.diviml import LEAST_NODES, RandomWiring, random_wired
from hsdag.models.networks import BertSizes, DecoderSizes, InceptionSizes, ResNetSizes, llama_decoder, seeded
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.drawn import draw_platform
from hsdag.runtime.platforms.platform import Platform
from hsdag.runtime.problem.schedule_problem import FREE, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate
from hsdag.sources.workload import workload_problem

MIN_OPS, MAX_OPS = 30, 400
"""Workloads of other sizes are drawn anew."""

LIMITED_SHARE, SLACK = 0.5, (1.05, 1.5)
"""How often memory is limited, and how much more each device then has than a plan over all of them needs."""

ALL = "all"


@dataclass(frozen=True)
class Family:
    """A distribution of problems; ``draw`` takes a seed."""

    name: str
    draw: Callable[[int], ScheduleProblem]

    def problem(self, seed: int) -> ScheduleProblem:
        """The problem of a seed, always the same. Raises OptionError where the seed is negative."""
        if seed < 0:
            raise OptionError(f"the seed of a problem must be 0 or more, not {seed}")
        return self.draw(seed)


def list_families() -> tuple[Family, ...]:
    """Every family, without compounds."""
    return tuple(_FAMILIES.values())


def find_family(names: str) -> Family:
    """The family called so, or several, joined by commas, in turn: seed s is seed s // n of family s % n.

    ALL means every family whose problems are drawn at once, all but ``zoo``. Raises OptionError naming the choices.
    """
    members = []
    for name in (_GENERATED if names == ALL else names).split(","):
        if name not in _FAMILIES:
            choices = ", ".join(_FAMILIES)
            raise OptionError(f"there is no family {name!r}; choose {ALL}, or from {choices}, several joined by commas")
        members.append(_FAMILIES[name])
    if len(members) == 1:
        return members[0]
    return Family(names, lambda seed: members[seed % len(members)].problem(seed // len(members)))


def spread_placement(problem: ScheduleProblem) -> IntArray:
    """[N] devices in turn along the topological order, each with about as many bytes of weights and results."""
    order, d = problem.topological_order, problem.num_devices
    held = np.cumsum((problem.weight_bytes + problem.output_bytes)[order])
    device = np.empty(problem.num_ops, dtype=np.int64)
    device[order] = np.minimum(held * d / held[-1], d - 1)
    return device


def _drawn(name: str, make: Callable[[np.random.Generator, Platform], ScheduleProblem]) -> Family:
    """A family of problems that ``make`` draws for a platform."""

    def draw(seed: int) -> ScheduleProblem:
        rng = np.random.default_rng([seed, crc32(name.encode())])
        problem = make(rng, draw_platform(rng))
        return replace(problem, name=f"{name} {seed}", memory_bytes=_draw_memory(rng, problem))

    return Family(name, draw)


def _of_workload(name: str, make: Callable[[np.random.Generator, int], Workload]) -> Family:
    """A family of workloads, which ``make`` draws for a number of devices until the size fits."""

    def problem(rng: np.random.Generator, platform: Platform) -> ScheduleProblem:
        workload = make(rng, platform.num_devices)
        while not MIN_OPS <= workload.graph.num_ops <= MAX_OPS:
            workload = make(rng, platform.num_devices)
        return workload_problem(workload, platform)

    return _drawn(name, problem)


def _draw_memory(rng: np.random.Generator, problem: ScheduleProblem) -> FloatArray:
    """[D] memory: without limit, or so much that no device holds all while a plan over all devices fits."""
    d, n = problem.num_devices, problem.num_ops
    limited, slack = rng.random() < LIMITED_SHARE, rng.uniform(*SLACK)
    if limited:
        limit = slack * float(simulate(problem, spread_placement(problem)).peak_memory_bytes.max())
        if all(limit < simulate(problem, np.full(n, i)).peak_memory_bytes[i] for i in range(d)):
            return np.full(d, limit)
    return np.full(d, FREE)


def _seeded(name: str) -> Callable[[np.random.Generator, int], Workload]:
    """The workload called ``name`` for a random seed, cut for a random number of devices."""

    def make(rng: np.random.Generator, num_devices: int) -> Workload:
        shards = int(rng.integers(2, num_devices + 1))
        return find_workload(name).build(shards, {"seed": int(rng.integers(2**63))})

    return make


def _random_wired(rng: np.random.Generator, _: int) -> Workload:
    family = str(rng.choice(tuple(LEAST_NODES)))
    return random_wired(
        RandomWiring(
            family,
            nodes=int(rng.integers(8, 33)),
            modules=int(rng.integers(1, 13)),
            channels=int(rng.integers(1, 4)),
            dependence=str(rng.choice(("weak", "strong"))),
            seed=int(rng.integers(2**63)),
            batch=int(rng.integers(1, 17)),
            width=int(rng.integers(32, 513)),
        )
    )


def _zoo(rng: np.random.Generator, platform: Platform) -> ScheduleProblem:
    """The units of a network that is converted anew, which takes seconds. Its weights are in f32."""
    from hsdag.ir.graph.build import read_graph  # not for other families: they load OpenVINO and torch
    from hsdag.models.torch_networks import to_openvino

    spec = _ARCHITECTURES[int(rng.integers(len(_ARCHITECTURES)))](rng)
    units = placement_units(read_graph(to_openvino(spec, spec.make_network(0))))
    return ScheduleProblem.from_graph(units.graph, analytic_costs(units, platform), platform.device_names)


def _resnet(rng: np.random.Generator) -> ModelSpec:
    """3 or 4 stages of 2 to 5 blocks; widths double from 16 to 64 channels."""
    stages, width = int(rng.integers(3, 5)), 8 * int(rng.integers(2, 9))
    depths = tuple(int(depth) for depth in rng.integers(2, 6, stages))
    sizes = ResNetSizes(tuple(width * 2**i for i in range(stages)), depths, stem=width, classes=100)
    return _resized("tiny_resnet", seeded("ResNet", sizes), _images(rng, 64))


def _inception(rng: np.random.Generator) -> ModelSpec:
    """1 to 3, 1 to 4 and 1 or 2 modules of the three kinds; channels are divided by 1 to 8."""
    sizes = InceptionSizes(
        pool_channels=(32, 64, 64)[: int(rng.integers(1, 4))],
        mid_channels=(128, 160, 160, 192)[: int(rng.integers(1, 5))],
        num_expanded=int(rng.integers(1, 3)),
        divisor=int(rng.choice((1, 2, 4, 8))),
        classes=100,
    )
    return _resized("tiny_inception", seeded("Inception", sizes), _images(rng, 96))


def _bert(rng: np.random.Generator) -> ModelSpec:
    """3 to 8 layers of 2 to 12 heads of 32 or 64, 16 to 256 tokens."""
    heads, tokens = int(rng.integers(2, 13)), 16 * int(rng.integers(1, 17))
    width = heads * int(rng.choice((32, 64)))
    sizes = BertSizes(int(rng.integers(3, 9)), width, heads, 4 * width, vocabulary=1000, positions=tokens)
    return _resized("tiny_bert", seeded("Bert", sizes), (1, tokens))


def _llama(rng: np.random.Generator) -> ModelSpec:
    """2 to 6 layers of 2 to 8 heads of 32 or 64 over a quarter or all of them of keys, 16 to 256 tokens."""
    key_heads, shared, head_size = int(rng.integers(1, 3)), int(rng.choice((1, 4))), int(rng.choice((32, 64)))
    heads = key_heads * shared * int(rng.integers(1, 3))
    width = heads * head_size
    sizes = DecoderSizes(
        layers=int(rng.integers(2, 7)),
        hidden=width,
        heads=heads,
        key_heads=key_heads,
        intermediate=3 * width,
        vocabulary=1000,
        tokens=16 * int(rng.integers(1, 17)),
    )
    return llama_decoder("llama", sizes)


def _images(rng: np.random.Generator, least: int) -> tuple[int, ...]:
    """Shape of one image with so many rows and columns at least."""
    size = 32 * int(rng.integers(least // 32, 8))
    return 1, 3, size, size


def _resized(name: str, make_network: Callable[[int], Any], shape: tuple[int, ...]) -> ModelSpec:
    """The model called ``name`` with another network behind inputs of another shape."""
    spec = find_model(name)
    inputs = tuple(replace(model_input, shape=shape) for model_input in spec.inputs)
    return replace(spec, make_network=make_network, inputs=inputs)


_ARCHITECTURES = (_resnet, _inception, _bert, _llama)

_FAMILIES = {
    family.name: family
    for family in (
        _of_workload("random-wired", _random_wired),
        *(_of_workload(name, _seeded(name)) for name in ("transformer", "chain", "enas", "nmt", "ptb")),
        _drawn("zoo", _zoo),
    )
}
"""Those of workloads, which the models folder describes, and the zoo's architectures at other sizes."""
_GENERATED = ",".join(name for name in _FAMILIES if name != "zoo")
