"""Profile a model: measure its ops on each device, and the links between devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hsdag.base.errors import checked
from hsdag.commands.place.loaded_model import ModelInputs
from hsdag.commands.place.session import Session
from hsdag.ir.graph.coarsen import CoarseGraph, placement_units
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.ir.graph.reader import Shapes, input_shapes
from hsdag.ir.graph.scenario import Scenario, parse_scenarios
from hsdag.ir.graph.sizing import read_sized
from hsdag.ir.placement.placement import ModelRecord, Record
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.profile import ModelProfile, figures
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.platform import Platform
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.solution import InMemory

Matrix = list[list[float | None]]
"""Values from each device (row) to each other one (column)."""


class ProfiledDevice(Record):
    """The figures of a profiled device, for the whole model.

    Args:
        latency_s: Median latency of the model on this device alone; None if it does not run there.
        spread: Interquartile range of the latency, relative to the median.
        runs: Number of inferences measured.
        first_s: Seconds of the first inference.
        resident_bytes: Growth of the process's memory by compiling and the first inference.
        device_bytes: Growth of the device's memory likewise; None if it does not report it.
        launch_s: Seconds for starting a submodel.
        wins: Number of groups of ops for which this is the fastest device.
        saved_s: Seconds by which it beats the second fastest device, over these groups.
    """

    name: str
    latency_s: float | None
    spread: float
    runs: int
    compile_s: float
    first_s: float
    resident_bytes: int
    device_bytes: int | None
    memory_bytes: float | None
    launch_s: float
    unsupported_ops: int
    wins: int
    saved_s: float


class ProfiledLinks(Record):
    """The latency and bandwidth of the links between devices."""

    latency_s: Matrix
    bandwidth_bytes_per_s: Matrix


class HeavyOp(Record):
    """A group of ops that some device computes as one, named after its heaviest op.

    Args:
        type: Type of the heaviest op.
        fused_ops: Number of ops in the group.
        time_s: Seconds on each device that supports the group.
        best: Fastest device; None if several are equally fast.
        share: Seconds of the group relative to those of all ops, each group on its fastest device.
    """

    name: str
    type: str
    fused_ops: int
    time_s: dict[str, float]
    best: str | None
    share: float


class ProfileResult(Record):
    """The measured profile of a model.

    Args:
        slowdown: Factor by which work on one device (column) slows another (row) down, by kind of work.
        heaviest: All groups of ops that take time, heaviest first.
        costs: Problem file that was written, if any.
        schedule: Costs as a problem to solve.
    """

    source: str
    devices: list[ProfiledDevice]
    links: ProfiledLinks
    slowdown: dict[str, Matrix]
    ops: int
    units: int
    heaviest: list[HeavyOp]
    costs: str | None = None
    schedule: InMemory[ScheduleProblem]


class AssumedCosts(Record):
    """The costs of a model on a platform, calculated and not measured, in the problem file ``costs``."""

    costs: str
    source: str
    devices: list[str]
    ops: int


def heaviest_ops(graph: ComputationGraph, profile: ModelProfile) -> tuple[list[HeavyOp], IntArray, FloatArray]:
    """Return groups of ops, heaviest first, and [D] the number of groups for which each device is the fastest, and the
    seconds [D] by which it beats the second fastest in these.

    Ops that some device fuses form one group on all devices.
    """
    pairs = np.asarray([(ops[0], v) for ops in profile.fused for v in ops[1:]], dtype=np.int64).reshape(-1, 2)
    groups = Partition.from_pairs(graph.num_ops, pairs[:, 0], pairs[:, 1])
    names = [spec.name for spec in profile.devices]
    floating = floating_ops(graph)
    num_devices = len(profile.devices)
    time_s = np.stack(
        [np.bincount(groups.labels, device.time_s, groups.num_groups) for device in profile.times], axis=1
    )  # NaN where any op of the group is unsupported
    ranked_s = np.sort(np.append(time_s, np.full((groups.num_groups, 1), np.nan), axis=1), axis=1)  # NaN comes last
    best_s = np.nan_to_num(ranked_s[:, 0])
    is_won = (best_s > 0) & (ranked_s[:, 0] != ranked_s[:, 1])
    winner = np.where(is_won, np.where(np.isnan(time_s), np.inf, time_s).argmin(axis=1), -1)
    gain_s = np.nan_to_num(ranked_s[:, 1] - ranked_s[:, 0])
    rows = []
    for g in np.argsort(-best_s, kind="stable")[: int((best_s > 0).sum())].tolist():
        members = groups.members.of(g).tolist()
        head = max(
            [v for v in members if not floating[v]] or members, key=lambda v: (graph.flops[v], -graph.position[v])
        )
        rows.append(
            HeavyOp(
                name=graph.op_names[head],
                type=graph.op_types[head],
                fused_ops=sum(not floating[v] for v in members) or len(members),
                time_s={name: s for name, s in zip(names, time_s[g].tolist(), strict=True) if not np.isnan(s)},
                best=names[winner[g]] if is_won[g] else None,
                share=float(best_s[g] / best_s.sum()),
            )
        )
    saved_s = np.bincount(winner[is_won], gain_s[is_won], num_devices).astype(np.float64)
    return rows, np.bincount(winner[is_won], minlength=num_devices).astype(np.int64), saved_s


@checked
def profile(
    model: Any,
    devices: str | None = None,
    *,
    partition_cpu: int | None = None,
    shape: str | Mapping[str, Sequence[int]] | None = None,
    data_shape: str | Sequence[str] = (),
    tokens: str | None = None,
    inputs: str | Path | None = None,
    seed: int = 0,
    fresh: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> ProfileResult:
    """Measure every op on every device, and the transfers between devices, as ``hsdag profile`` does.

    Raises a ``hsdag.HsdagError`` for what the caller can correct.

    Args:
        model: Path, or ``ov.Model``.
        devices: Names as at the command line, for example ``"CPU,GPU.0"``; by default all devices.
        partition_cpu: Number of devices into which the CPU is divided.
        inputs: An .npz file with one array for each input; by default inputs are random.
        fresh: Measure again what the cache has.
        on_step: Called with a line for each step.

    Examples:
        >>> import hsdag, openvino as ov
        >>> x = ov.opset13.parameter([2], name="x")
        >>> model = ov.Model([ov.opset13.negative(ov.opset13.relu(x))], [x], "small")
        >>> result = hsdag.profile(model, "CPU")
        >>> result.ops, [device.name for device in result.devices]
        (4, ['CPU'])
    """
    device_set = resolve_devices(devices, partition_cpu)
    scenarios = parse_scenarios(data_shape, tokens)
    model_inputs = ModelInputs(input_shapes(shape), None, scenarios, None if inputs is None else Path(inputs), seed)
    with Session(model, device_set, model_inputs) as session:
        profile = session.profile(ProfileCache(None) if fresh else None, on_step=on_step, side_by_side=True)
        problem = session.problem(profile=profile)
        costs = profile.costs(session.graph)
    heaviest, wins, saved_s = heaviest_ops(session.graph, profile)
    whole = ("latency_s", "spread", "runs", "compile_s", "first_s", "resident_bytes", "device_bytes", "memory_bytes")
    profiled = [
        ProfiledDevice(
            name=spec.name,
            **{name: getattr(times, name) for name in whole},
            launch_s=float(costs.launch_s[d]),
            unsupported_ops=int(np.isnan(times.time_s).sum()),
            wins=int(wins[d]),
            saved_s=float(saved_s[d]),
        )
        for d, (spec, times) in enumerate(zip(profile.devices, profile.times, strict=True))
    ]
    factors = {} if profile.contention is None else profile.contention.factor
    return ProfileResult(
        source=costs.source.value,
        devices=profiled,
        links=ProfiledLinks(
            latency_s=figures(costs.link_latency_s),
            bandwidth_bytes_per_s=figures(costs.link_bandwidth_bytes_per_s),
        ),
        slowdown={kind: figures(table) for kind, table in factors.items()},
        ops=session.graph.num_ops,
        units=problem.num_units,
        heaviest=heaviest,
        schedule=replace(
            colocated_by_unit(costs, problem.units), model=session.model_record, devices=session.devices.placed
        ),
    )


def platform_costs(
    source: Any,
    platform: Platform,
    shapes: Shapes | None = None,
    scenarios: Sequence[Scenario] = (),
) -> ScheduleProblem:
    """Return a model's costs calculated from the figures of a platform. Raises ModelError as reading a model does."""
    graph = read_sized(source, shapes, scenarios)
    return replace(
        colocated_by_unit(analytic_costs(graph, platform), placement_units(graph)), model=ModelRecord.of(graph)
    )


def colocated_by_unit(problem: ScheduleProblem, units: CoarseGraph) -> ScheduleProblem:
    """Return a problem over ops whose ops are co-located by placement unit, so that answers name the model's ops."""
    names = tuple(units.graph.op_names[u] for u in units.partition.labels.tolist())
    return replace(problem, labels=replace(problem.labels, colocate=names))
