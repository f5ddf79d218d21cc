"""Simulated runs: the timeline of one placement, and the makespans of many.

Legend: N ops, E edges, D devices, B placements, R transfer records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from hsdag.base.errors import OptionError, PlacementError
from hsdag.base.kernels import bare, inner, run_kernel
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.runtime.machine.usable import in_parts, usable_cpus
from hsdag.runtime.problem.plan import priority_by_end
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order, Semantics
from hsdag.runtime.simulator.buses import run_by_events
from hsdag.runtime.simulator.execution import run_independent, run_sequential
from hsdag.runtime.simulator.machine import (
    BY_ARRIVAL,
    BY_LATEST_ARRIVAL,
    BY_PATH,
    BY_RANK,
    BY_STARTS,
    IN_TURN,
    SEQUENTIAL,
    Machine,
    assign_devices,
    machine_for,
)
from hsdag.runtime.simulator.memory import find_peaks, memory_peaks_of
from hsdag.runtime.timeline import OpIntervals, Timeline, TransferIntervals

NO_VALUES = np.zeros((0, 0))
OPS_PER_THREAD = 20_000
"""Least number of ops that a thread has to simulate to be worth its start."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated run of one placement; every figure is simulated.

    ``transfers`` has one row for each result and destination, by start, op and destination; under egress
    links the rows of one result share an interval: they are one transfer.
    ``busy_s`` are the seconds of the devices' ops, without overheads and launches. ``num_transfers`` and
    ``transfer_bytes`` count an egress transfer to several devices once, at its largest size.
    """

    makespan_s: float
    device: IntArray  # [N]
    start_s: FloatArray  # [N]
    end_s: FloatArray  # [N]
    transfers: TransferIntervals
    num_transfers: int
    transfer_bytes: float
    busy_s: FloatArray  # [D]
    problem: ScheduleProblem
    machine: Machine  # the machine that has recorded the run

    @property
    def priority(self) -> IntArray:
        """Return [N] ranks with which the run repeats itself."""
        return priority_by_end(self.end_s, self.start_s)

    @cached_property
    def peak_memory_bytes(self) -> FloatArray:
        """Return [D] the most bytes that devices hold at any time; computed on first use."""
        peaks = memory_peaks_of(self.problem)
        run_kernel(find_peaks, 2 * (self.problem.num_ops + len(self.machine.edges)), self.machine, peaks)
        return peaks.peak_bytes

    @property
    def timeline(self) -> Timeline:
        """Return when ops and transfers ran."""
        problem = self.problem
        return Timeline(
            name=problem.name,
            op_names=problem.op_names,
            op_types=problem.labels.types,
            device_names=problem.device_names,
            ops=OpIntervals(np.arange(problem.num_ops), self.device, self.start_s, self.end_s),
            transfers=self.transfers,
            edges=np.stack([problem.edge_src, problem.edge_dst], axis=1),
            simulated=True,
        )


def simulate(
    problem: ScheduleProblem,
    placement: ArrayLike,
    semantics: Semantics | None = None,
    priority: ArrayLike | None = None,
) -> Simulation:
    """Simulate the run of ``placement`` [N], the device of each op.

    ``priority`` [N] of ops are for Order.PRIORITY, the smallest first. Raises PlacementError when the
    placement has another length, a device that is not there, or one that does not support its op, and
    OptionError for an order without the ranks it needs, or links under which no latency is simulated.
    """
    semantics = simulated(semantics)
    placements = checked_placements(problem, np.asarray(placement)[None])
    device = placements[0]
    if not all_supported(problem, placements)[0]:
        op = int(np.isnan(problem.time_s[np.arange(problem.num_ops), device]).argmax())
        name = problem.device_names[device[op]]
        raise PlacementError(f"op {problem.op_names[op]!r} is on device {name!r}, which does not support it")
    mode, values = mode_and_priority(semantics, priority, problem.num_ops)
    machine = machine_for(problem, semantics, mode, values, keep=True)
    makespan_s = np.empty(1)
    run_many(machine, placements, makespan_s)
    return _result(problem, semantics, machine, device, float(makespan_s[0]))


def simulate_makespans(
    problem: ScheduleProblem,
    placements: ArrayLike,
    semantics: Semantics | None = None,
    priority: ArrayLike | None = None,
    num_threads: int | None = None,
) -> FloatArray:
    """Return [B] the simulated makespans in seconds of ``placements`` [B, N], infinite where an op is not supported.

    Ranks are [N] for all of them, or [B, N]. ``num_threads`` defaults to the number of cores that this process may
    use. Raises as ``simulate`` does, except for unsupported ops.
    """
    semantics = simulated(semantics)
    table = checked_placements(problem, np.asarray(placements))
    ranks = np.zeros((0, problem.num_ops)) if priority is None else np.asarray(priority, dtype=np.float64)
    of_each = ranks.ndim == 2 and len(ranks) > 0
    if of_each and (ranks.shape != table.shape or np.isnan(ranks).any()):
        raise OptionError(f"priorities of {len(table)} placements must be {problem.num_ops} numbers for each of them")
    mode, values = mode_and_priority(semantics, ranks[0] if of_each else priority, problem.num_ops)
    makespans_s = np.full(len(table), np.inf)
    supported = all_supported(problem, table)
    table = table[supported]
    ranks = ranks[supported][:, problem.topological_order] if of_each and mode == BY_RANK else ranks[:0].reshape(0, 0)
    supported_s = np.empty(len(table))

    def run_part(part: slice) -> None:
        run_many(machine_for(problem, semantics, mode, values), table[part], supported_s[part], ranks[part])

    worth = min(len(table), table.size // OPS_PER_THREAD)
    in_parts(run_part, len(table), min(num_threads or usable_cpus(), worth))
    makespans_s[supported] = supported_s
    return makespans_s


def run_many(m: Machine, placements: IntArray, makespans_s: FloatArray, values: FloatArray = NO_VALUES) -> None:
    """Fill ``makespans_s`` [B] with the makespans of ``placements`` [B, N], all of them supported.

    ``values`` [B, N] in topological order replace the machine's, if there are any.
    """
    run_kernel(_run_many, placements.size + len(placements) * len(m.edges), m, placements, makespans_s, values)


@bare
def _run_many(m: Machine, placements: IntArray, makespans_s: FloatArray, values: FloatArray) -> None:
    for b in range(len(placements)):
        for v in range(len(m.order) if len(values) > 0 else 0):
            m.ops[v].value = values[b, v]
        assign_devices(m, placements[b])
        makespans_s[b] = run_loaded(m, m.way)


@inner
def run_loaded(m: Machine, way: tuple[int, ...]) -> float:
    """Return the makespan in seconds of the loaded placement; ``way`` is the machine's."""
    if len(way) == IN_TURN:
        return run_sequential(m)
    return run_independent(m) if len(way) == BY_STARTS else run_by_events(m, way)


def simulated(semantics: Semantics | None) -> Semantics:
    """Return the semantics to simulate with. Raises OptionError for links that only the throughput objective has."""
    if semantics is not None and semantics.links is LinkSharing.BLOCKING:
        raise OptionError("links 'blocking' are for the throughput objective only; simulate with another kind of links")
    return semantics or Semantics()


def mode_and_priority(semantics: Semantics, priority: ArrayLike | None, num_ops: int) -> tuple[int, FloatArray | None]:
    """Return the mode of a simulation, and the ranks [N] of the ops, smallest first, if the mode needs any.

    Raises OptionError for PRIORITY without ranks, or if they are not [N] or not numbers.
    """
    ranks = None if priority is None else np.asarray(priority, dtype=np.float64)
    if ranks is not None and (ranks.shape != (num_ops,) or np.isnan(ranks).any()):
        raise OptionError(f"priorities must be {num_ops} numbers, one for each op")
    order = semantics.order or (Order.FIFO if priority is None else Order.PRIORITY)
    if order is Order.PRIORITY and priority is None:
        raise OptionError("order 'priority' needs priorities; the placement has none")
    if semantics.execution is Execution.SEQUENTIAL:
        return SEQUENTIAL, None
    if order is Order.PRIORITY:
        return BY_RANK, ranks
    if order is Order.RANDOM:
        return BY_RANK, np.random.default_rng(semantics.seed).permutation(num_ops).astype(np.float64)
    return {Order.FIFO: BY_ARRIVAL, Order.DEPTH_FIRST: BY_LATEST_ARRIVAL, Order.CRITICAL_PATH: BY_PATH}[order], None


def checked_placements(problem: ScheduleProblem, placements: np.ndarray) -> IntArray:
    """Return [B, N] placements as kernels take them. Raises PlacementError for other shapes, types and devices."""
    if placements.ndim != 2 or placements.shape[1] != problem.num_ops:
        raise PlacementError(
            f"a placement must name a device for each of {problem.num_ops} ops, not {placements.shape}"
        )
    if placements.dtype.kind not in "iu" and placements.size:
        raise PlacementError(f"a placement must hold device indices, not {placements.dtype}")
    table = np.require(placements, np.int64, ["C", "W"])  # a kernel would be compiled again for a read-only array
    wrong = table[(table < 0) | (table >= problem.num_devices)]
    if wrong.size:
        raise PlacementError(f"a placement names device {wrong[0]}, but there are only {problem.num_devices}")
    return table


def all_supported(problem: ScheduleProblem, placements: IntArray) -> BoolArray:
    """Return [B] whether every device supports the ops that ``placements`` [B, N] put on it."""
    if problem.supported.all():
        return np.ones(len(placements), dtype=np.bool_)
    return np.asarray(problem.supported[np.arange(problem.num_ops), placements].all(axis=1))


def _result(
    problem: ScheduleProblem, semantics: Semantics, m: Machine, device: IntArray, makespan_s: float
) -> Simulation:
    start_s, end_s = np.empty(problem.num_ops), np.empty(problem.num_ops)
    start_s[m.order], end_s[m.order] = m.spans["start_s"], m.spans["end_s"]
    records = m.records[: int(m.run["num_records"][0])].copy()
    records["op"], records["port"] = m.order[records["op"]], m.ports[records["port"]]
    records = records[np.lexsort((records["to"], records["port"], records["op"], records["start_s"]))]
    op, to, size_bytes = records["op"].copy(), records["to"].copy(), records["size_bytes"].copy()
    num_transfers, transfer_bytes = len(op), float(size_bytes.sum())
    if semantics.links is LinkSharing.EGRESS:
        results, of_result = np.unique(np.stack((op, records["port"])), axis=1, return_inverse=True)
        num_transfers = results.shape[1]
        largest = np.zeros(results.shape[1])
        np.maximum.at(largest, of_result.reshape(-1), size_bytes)
        transfer_bytes = float(largest.sum())
    busy_s = end_s - start_s if len(m.excess) > 0 else problem.time_s[np.arange(problem.num_ops), device]
    return Simulation(
        makespan_s=makespan_s,
        device=device,
        start_s=start_s,
        end_s=end_s,
        transfers=TransferIntervals(op, device[op], to, records["start_s"].copy(), records["end_s"].copy(), size_bytes),
        num_transfers=num_transfers,
        transfer_bytes=transfer_bytes,
        busy_s=np.bincount(device, busy_s, problem.num_devices).astype(np.float64),
        problem=problem,
        machine=m,
    )
