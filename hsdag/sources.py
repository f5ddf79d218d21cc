"""Where problems come from: workloads on platforms, and families of random ones to train a policy on, or to test it on.

A workload's problem has a graph from the models folder, a platform, and analytic costs. That of a family is a workload
of random size on a random machine (hsdag.runtime.platforms.drawn). Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.models import Workload, find_workload
from hsdag.models.diviml import LEAST_NODES, RandomWiring, random_wired
from hsdag.models.registry import parse_workload
from hsdag.models.sharded_workloads import LlamaSizes, llama_block, llama_layer
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.drawn import draw_platform
from hsdag.runtime.platforms.platform import Calibration, Platform
from hsdag.runtime.platforms.reader import load_platform
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import FREE, OpLabels, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate


def workload_problem(workload: Workload, platform: Platform) -> ScheduleProblem:
    """The problem of placing ``workload`` on ``platform``, with the labels of its ops and analytic costs."""
    graph = workload.graph
    problem = analytic_costs(graph, platform)
    nothing = ("",) * graph.num_ops
    labels = OpLabels(graph.op_types, nothing, workload.meta_ops, workload.roles, workload.expressions)
    return replace(problem, name=f"{graph.name} on {platform.name}", labels=labels)


def build_problem(name: str, platform: str | None = None) -> ScheduleProblem:
    """The problem of a workload by name and options, as ``parse_workload`` takes them; ``devices`` are the first ones.

    ``platform`` is a name or the path of a .toml file, by default the workload's own. Raises ModelError for an unknown
    workload, OptionError for options that do not fit, FileFormatError for a platform on which no placement can fit.
    """
    spec, given = parse_workload(name)
    spec.check_options(given)
    where = load_platform(platform or spec.platform)
    if "devices" in given:
        where = first_devices(where, int(given.pop("devices")))
    problem = workload_problem(spec.build(where.num_devices, given), where)
    return problem_from_json(problem_to_json(problem), f"{name} on {where.name}")


def first_devices(platform: Platform, num_devices: int) -> Platform:
    """The platform with its first devices alone. Raises OptionError when it has fewer, or the number is 0."""
    if not 1 <= num_devices <= platform.num_devices:
        raise OptionError(
            f"devices must lie in 1..{platform.num_devices}, those of platform {platform.name}, "
            f"not {num_devices}; name a larger platform with --platform"
        )
    return with_devices(platform, platform.device_names[:num_devices])


def with_devices(platform: Platform, names: Sequence[str]) -> Platform:
    """The platform with the devices of these names alone, which it has, in its own order."""
    idx = np.flatnonzero(np.isin(platform.device_names, names))
    kept = tuple(platform.devices[d] for d in idx.tolist())
    fitted = platform.calibration
    if fitted is not None:
        known = {name: figures for name, figures in fitted.devices.items() if name in names}
        fitted = Calibration(provenance=fitted.provenance, devices=known) if known else None
    return replace(
        platform,
        devices=kept,
        link_latency_s=platform.link_latency_s[np.ix_(idx, idx)],
        link_bandwidth_bytes_per_s=platform.link_bandwidth_bytes_per_s[np.ix_(idx, idx)],
        calibration=fitted,
    )


MIN_OPS, MAX_OPS = 30, 400
"""Workloads of other sizes are drawn anew."""

TILE, LAYER_SHARE = 840, 0.4
"""Axes of Llama's sizes are multiples of this, which 1 to 8 divide; how often a layer is drawn, else blocks."""

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

    ALL means every family. Raises OptionError naming the choices.
    """
    members = []
    for name in (",".join(_FAMILIES) if names == ALL else names).split(","):
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


def _drawn(name: str, make: Callable[[np.random.Generator, int], Workload]) -> Family:
    """A family of workloads, which ``make`` draws for a number of devices until the size fits."""

    def draw(seed: int) -> ScheduleProblem:
        rng = np.random.default_rng([seed, crc32(name.encode())])
        platform = draw_platform(rng)
        workload = make(rng, platform.num_devices)
        while not MIN_OPS <= workload.graph.num_ops <= MAX_OPS:
            workload = make(rng, platform.num_devices)
        problem = workload_problem(workload, platform)
        return replace(problem, name=f"{name} {seed}", memory_bytes=_draw_memory(rng, problem))

    return Family(name, draw)


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


def _llama(rng: np.random.Generator, num_devices: int) -> Workload:
    """A layer with mask and logits, or up to three blocks, cut for a random number of devices."""
    k = int(rng.integers(2, num_devices + 1))
    head_size, heads = int(rng.choice((32, 64, 128))), k * int(rng.integers(1, 9))
    sizes = LlamaSizes(
        tokens=TILE * int(rng.integers(1, 7)),
        width=head_size * heads,
        heads=heads,
        hidden=TILE * int(rng.integers(1, 13)),
        vocabulary=TILE * 32,
    )
    return llama_layer(k, sizes) if rng.random() < LAYER_SHARE else llama_block(k, *[sizes] * int(rng.integers(1, 4)))


_FAMILIES = {
    family.name: family
    for family in (
        _drawn("random-wired", _random_wired),
        *(_drawn(name, _seeded(name)) for name in ("transformer", "chain", "enas", "nmt", "ptb")),
        _drawn("llama", _llama),
    )
}
