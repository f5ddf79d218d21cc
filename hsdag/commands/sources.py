"""Create problems: workloads on platforms, and families of random problems to train or test a policy on.

The problem of a workload has a graph from ``hsdag.models``, a platform, and analytic costs. A family draws workloads of
random size and machines. Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import numpy as np

from hsdag.base.errors import OptionError, option
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
    """Return the problem of placing ``workload`` on ``platform``, with the labels of its ops and analytic costs."""
    graph = workload.graph
    labels = OpLabels(graph.op_types, ("",) * graph.num_ops, workload.meta_ops, workload.roles, workload.expressions)
    return replace(analytic_costs(graph, platform), name=f"{graph.name} on {platform.name}", labels=labels)


def build_problem(name: str, platform: str | None = None) -> ScheduleProblem:
    """Return the problem of a workload, which ``name`` gives with options as ``parse_workload`` takes them.

    The option ``devices`` selects the first devices of the platform. ``platform`` is a name or the path of a .toml
    file, by default the workload's own. Raises ModelError for an unknown workload, OptionError for options that do not
    fit, and FileFormatError for a platform on which no placement can fit.
    """
    spec, options = parse_workload(name)
    spec.check_options(options)
    where = load_platform(platform or spec.platform)
    if "devices" in options:
        where = first_devices(where, int(options.pop("devices")))
    problem = workload_problem(spec.build(where.num_devices, options), where)
    return problem_from_json(problem_to_json(problem), f"{name} on {where.name}")


def first_devices(platform: Platform, num_devices: int) -> Platform:
    """Return the platform with only its first devices. Raises OptionError if it has fewer, or for 0."""
    if not 1 <= num_devices <= platform.num_devices:
        raise OptionError(
            f"devices must lie in 1..{platform.num_devices}, those of platform {platform.name}, "
            f"not {num_devices}; name a larger platform with {option('platform')}"
        )
    return with_devices(platform, platform.device_names[:num_devices])


def with_devices(platform: Platform, names: Sequence[str]) -> Platform:
    """Return the platform with only the named devices, which it must have, in its own order."""
    idx = np.flatnonzero(np.isin(platform.device_names, names))
    if (fitted := platform.calibration) is not None:
        kept = {name: figures for name, figures in fitted.devices.items() if name in names}
        fitted = Calibration(provenance=fitted.provenance, devices=kept) if kept else None
    return replace(
        platform,
        devices=tuple(platform.devices[d] for d in idx.tolist()),
        link_latency_s=platform.link_latency_s[np.ix_(idx, idx)],
        link_bandwidth_bytes_per_s=platform.link_bandwidth_bytes_per_s[np.ix_(idx, idx)],
        calibration=fitted,
    )


MIN_OPS, MAX_OPS = 30, 400
"""Redraw workloads with fewer or more ops than this."""

TILE, LAYER_SHARE = 840, 0.4
"""Axes of drawn Llama sizes are multiples of TILE, which 1 to 8 divide; probability of a layer rather than blocks."""

LIMITED_SHARE, SLACK = 0.5, (1.05, 1.5)
"""Probability of limited memory, and the range of memory relative to the peak of a plan over all devices."""

ALL = "all"
"""Name that stands for all families."""


@dataclass(frozen=True)
class Family:
    """A distribution of problems; ``draw`` maps a seed to a problem."""

    name: str
    draw: Callable[[int], ScheduleProblem]

    def problem(self, seed: int) -> ScheduleProblem:
        """Return the problem of a seed, always the same. Raises OptionError for a negative seed."""
        if seed < 0:
            raise OptionError(f"the seed of a problem must be 0 or more, not {seed}")
        return self.draw(seed)


def list_families() -> tuple[Family, ...]:
    """Return every single family; ``find_family`` also combines several."""
    return tuple(_FAMILIES.values())


def find_family(names: str) -> Family:
    """Return the family of that name, or several families, joined by commas, that alternate.

    Among n families, seed s is seed s // n of family s % n. ALL stands for every family. Raises OptionError with the
    choices.
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
    """Return a device for each op, [N]: consecutive stretches of the topological order, of about equal bytes.

    Bytes are those of weights and results.
    """
    order, d = problem.topological_order, problem.num_devices
    total_bytes = np.cumsum((problem.weight_bytes + problem.output_bytes)[order])
    device = np.empty(problem.num_ops, dtype=np.int64)
    device[order] = np.minimum(total_bytes * d / total_bytes[-1], d - 1)
    return device


def _drawn(name: str, make: Callable[[np.random.Generator, int], Workload]) -> Family:
    """Return a family of workloads; ``make`` draws one for a number of devices until its size fits."""

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
    """Draw memory in bytes, [D]: unlimited, or a limit that no single device can meet but a plan over all can."""
    d, n = problem.num_devices, problem.num_ops
    limited, slack = rng.random() < LIMITED_SHARE, rng.uniform(*SLACK)
    if limited:
        limit = slack * float(simulate(problem, spread_placement(problem)).peak_memory_bytes.max())
        if all(limit < simulate(problem, np.full(n, i)).peak_memory_bytes[i] for i in range(d)):
            return np.full(d, limit)
    return np.full(d, FREE)


def _seeded(name: str, rng: np.random.Generator, num_devices: int) -> Workload:
    """Draw the workload called ``name`` with a random seed, for a random number of devices."""
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
    """Draw a layer with mask and logits, or one to three blocks, for a random number of devices."""
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
"""Where devices or links differ, one may be up to this many times slower than another."""

PEAK_FLOPS_PER_S, BYTES_PER_FLOP = (1e12, 2e13), (0.03, 0.15)
"""Ranges of the fastest device's peak, and of memory bandwidth in bytes per peak FLOP: a P100 has 1.06e13 and 0.07."""

LINK_SHARE, LINK_LATENCY_S, OP_OVERHEAD_S = (1 / 32, 1 / 2), (1e-6, 3e-5), (1e-6, 1e-5)
"""Ranges of link bandwidth relative to memory bandwidth, of link latency, and of an op's time beyond its roofline."""

BETWEEN_GROUPS = (2.0, 8.0)
"""Range of how many times slower links between two groups of devices are than links within a group."""

AMPLE_BYTES = 1e15
"""Memory of a drawn device in bytes, more than any model takes; limits are derived from what is to be placed."""

_EFFICIENCY = dict.fromkeys(OP_CLASSES, 0.5) | {OpClass.CONVOLUTION: 0.6, OpClass.PRODUCT: 0.7}


def draw_platform(rng: np.random.Generator) -> Platform:
    """Draw a machine of 2 to 8 devices, all alike or differing in speed by up to SPREAD.

    The arithmetic and the memory of a device that differs are slowed by independent factors. Links are all alike, alike
    within two groups and slower between them, or all different; they are symmetric. Efficiencies are those of platform
    p100x4.
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
        devices=devices,
        link_latency_s=latency_s,
        link_bandwidth_bytes_per_s=bandwidth,
    )


def _slower_links(rng: np.random.Generator, d: int) -> FloatArray:
    """Draw how many times slower than the fastest possible link each link is, [D, D]."""
    if (kind := str(rng.choice(("alike", "groups", "unlike")))) == "groups":
        in_first = np.arange(d) < rng.integers(1, d)
        return np.where(in_first[:, None] == in_first, 1.0, _log_uniform(rng, BETWEEN_GROUPS))
    one_way = np.triu(np.exp(rng.uniform(0.0, np.log(SPREAD), (d, d))) if kind == "unlike" else np.ones((d, d)), 1)
    return np.asarray(one_way + one_way.T + np.eye(d))


def _log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    """Draw a number between two positive bounds, log-uniformly."""
    return float(np.exp(rng.uniform(*np.log(bounds))))
