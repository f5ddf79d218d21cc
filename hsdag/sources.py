"""Where problems come from: workloads on platforms, and families of random ones to train a policy on, or to test it on.

A workload's problem has a graph from the models folder, a platform, and analytic costs. That of a family is a workload
of random size on a random machine. Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.models import Workload, find_workload
from hsdag.models.diviml import LEAST_NODES, RandomWiring, random_wired
from hsdag.models.registry import parse_workload
from hsdag.models.sharded_workloads import LlamaSizes, llama_block, llama_layer
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.platform import OP_CLASSES, Calibration, OpClass, Platform, PlatformDevice, load_platform
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import FREE, OpLabels, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate


def workload_problem(workload: Workload, platform: Platform) -> ScheduleProblem:
    """The problem of placing ``workload`` on ``platform``, with the labels of its ops and analytic costs."""
    graph = workload.graph
    labels = OpLabels(graph.op_types, ("",) * graph.num_ops, workload.meta_ops, workload.roles, workload.expressions)
    return replace(analytic_costs(graph, platform), name=f"{graph.name} on {platform.name}", labels=labels)


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
    if (fitted := platform.calibration) is not None:
        known = {name: figures for name, figures in fitted.devices.items() if name in names}
        fitted = Calibration(provenance=fitted.provenance, devices=known) if known else None
    return replace(
        platform,
        devices=tuple(platform.devices[d] for d in idx.tolist()),
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


def _seeded(name: str, rng: np.random.Generator, num_devices: int) -> Workload:
    """The workload called ``name`` for a random seed, cut for a random number of devices."""
    return find_workload(name).build(int(rng.integers(2, num_devices + 1)), {"seed": int(rng.integers(2**63))})


def _random_wired(rng: np.random.Generator, _: int) -> Workload:
    return random_wired(
        RandomWiring(
            str(rng.choice(tuple(LEAST_NODES))),
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
        *(_drawn(name, partial(_seeded, name)) for name in ("transformer", "chain", "enas", "nmt", "ptb")),
        _drawn("llama", _llama),
    )
}


MIN_DEVICES, MAX_DEVICES = 2, 8
SPREAD = 8.0
"""How many times as slow as another one a device or a link may be, where they are unlike."""

PEAK_FLOPS_PER_S, BYTES_PER_FLOP = (1e12, 2e13), (0.03, 0.15)
"""Range of the fastest device's peak, and of its memory bandwidth over its peak: a P100 has 1.06e13 and 0.07."""

LINK_SHARE, LINK_LATENCY_S, OP_OVERHEAD_S = (1 / 32, 1 / 2), (1e-6, 3e-5), (1e-6, 1e-5)
"""Ranges of a link's bandwidth over the memory's, of a link's latency, and of what an op takes beside its roofline."""

BETWEEN_GROUPS = (2.0, 8.0)
"""Range of how many times as slow links are between two groups of devices than inside."""

AMPLE_BYTES = 1e15
"""Memory of a drawn device, more than any model takes: limits follow from what is to be placed."""

_EFFICIENCY = dict.fromkeys(OP_CLASSES, 0.5) | {OpClass.CONVOLUTION: 0.6, OpClass.PRODUCT: 0.7}


def draw_platform(rng: np.random.Generator) -> Platform:
    """A machine of 2 to 8 devices, all alike or up to SPREAD times apart.

    Arithmetic and memory of a device that is unlike the others are slower by factors of their own. Links are all alike,
    or alike in two groups of devices with slower links between, or unlike; they are the same in both directions.
    Efficiencies are those that platform p100x4 assumes.
    """
    d = int(rng.integers(MIN_DEVICES, MAX_DEVICES + 1))
    peak, overhead_s = _log_uniform(rng, PEAK_FLOPS_PER_S), _log_uniform(rng, OP_OVERHEAD_S)
    memory_bandwidth = peak * _log_uniform(rng, BYTES_PER_FLOP)
    slower = np.exp(rng.uniform(0.0, np.log(SPREAD), (d, 2))) if rng.integers(2) else np.ones((d, 2))
    devices = tuple(
        PlatformDevice(
            name=f"d{i}",
            kind="gpu",
            peak_flops_per_s={"f32": peak / arithmetic},
            memory_bandwidth_bytes_per_s=memory_bandwidth / memory,
            memory_bytes=AMPLE_BYTES,
            launch_s=1e-5,
            op_overhead_s=overhead_s,
            memory_efficiency=0.75,
            efficiency=_EFFICIENCY,
        )
        for i, (arithmetic, memory) in enumerate(slower.tolist())
    )
    bandwidth = memory_bandwidth * _log_uniform(rng, LINK_SHARE) / _slower_links(rng, d)
    latency_s = np.full((d, d), _log_uniform(rng, LINK_LATENCY_S))
    np.fill_diagonal(bandwidth, np.inf)
    np.fill_diagonal(latency_s, 0.0)
    return Platform(
        name="drawn",
        description=f"{d} devices drawn at random.",
        devices=devices,
        link_latency_s=latency_s,
        link_bandwidth_bytes_per_s=bandwidth,
    )


def _slower_links(rng: np.random.Generator, d: int) -> FloatArray:
    """[D, D] how many times as slow as the fastest possible each link is."""
    if (kind := str(rng.choice(("alike", "groups", "unlike")))) == "groups":
        in_first = np.arange(d) < rng.integers(1, d)
        return np.where(in_first[:, None] == in_first, 1.0, _log_uniform(rng, BETWEEN_GROUPS))
    one_way = np.triu(np.exp(rng.uniform(0.0, np.log(SPREAD), (d, d))) if kind == "unlike" else np.ones((d, d)), 1)
    return np.asarray(one_way + one_way.T + np.eye(d))


def _log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(bounds))))
