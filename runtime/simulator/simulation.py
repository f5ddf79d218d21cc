"""Simulated runs: the timeline of one placement, and the makespans of many.

Legend: N ops, E edges, D devices, B placements, R transfer records.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import ArrayLike

from hsdag.ir.errors import PlacementError
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator.heaps import Records
from hsdag.runtime.simulator.machine import load_placement, machine_for
from hsdag.runtime.simulator.memory import peak_memory_bytes
from hsdag.runtime.simulator.order import SEQUENTIAL, mode_and_keys, set_path_keys
from hsdag.runtime.simulator.semantics import Links, Semantics
from hsdag.runtime.simulator.sequential import run_sequential
from hsdag.runtime.simulator.work_conserving import BY_PATH, run_work_conserving


@dataclass(frozen=True, eq=False)
class Transfers:
    """One record for each result and device it is sent to, by start, op and destination.

    Under egress links the records of one result share an interval: they are one transfer.
    """

    op: IntArray  # [R]
    src_device: IntArray  # [R]
    dst_device: IntArray  # [R]
    start_s: FloatArray  # [R]
    end_s: FloatArray  # [R]
    size_bytes: FloatArray  # [R]


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated run of one placement; every figure is simulated.

    ``busy_s`` is what the devices spend on ops, without overheads and launches. ``num_transfers`` and
    ``transfer_bytes`` count an egress transfer to several devices once, at its largest size.
    """

    semantics: Semantics
    makespan_s: float
    device: IntArray  # [N]
    start_s: FloatArray  # [N]
    end_s: FloatArray  # [N]
    transfers: Transfers
    num_transfers: int
    transfer_bytes: float
    busy_s: FloatArray  # [D]
    peak_memory_bytes: FloatArray  # [D]


def simulate(
    problem: ScheduleProblem,
    placement: ArrayLike,
    semantics: Semantics | None = None,
    priority: ArrayLike | None = None,
) -> Simulation:
    """The simulated run of ``placement`` [N], the device of each op.

    ``priority`` [N] ranks ops for Order.PRIORITY, the smallest first. Raises PlacementError when the
    placement has another length, a device that is not there, or one that does not support its op, and
    OptionError for an order without the priorities it needs.
    """
    semantics = semantics or Semantics()
    placements = _checked(problem, np.asarray(placement)[None])
    mode, keys = mode_and_keys(semantics, _ranks(priority), problem.num_ops)
    machine = machine_for(problem, semantics, mode, keys, keep=True)
    makespan_s = float(_run_many(*machine, placements, np.zeros(1)))
    device = placements[0]
    if np.isnan(problem.time_s[np.arange(problem.num_ops), device]).any():
        op = int(np.isnan(problem.time_s[np.arange(problem.num_ops), device]).argmax())
        name = problem.device_names[device[op]]
        raise PlacementError(f"op {problem.op_names[op]!r} is on device {name!r}, which does not support it")
    records = machine.records[: int(machine.run["num_records"][0])]
    return _result(problem, semantics, machine.ops, records, makespan_s)


def simulate_makespans(
    problem: ScheduleProblem,
    placements: ArrayLike,
    semantics: Semantics | None = None,
    priority: ArrayLike | None = None,
    num_threads: int | None = None,
) -> FloatArray:
    """[B] simulated makespans in seconds of ``placements`` [B, N], infinite where an op is not supported.

    Priorities, random ranks and noise are the same for all of them. ``num_threads`` defaults to the cores
    this process may use. Raises as ``simulate`` does, but for unsupported ops.
    """
    semantics = semantics or Semantics()
    table = _checked(problem, np.asarray(placements))
    mode, keys = mode_and_keys(semantics, _ranks(priority), problem.num_ops)
    makespans_s = np.empty(len(table))
    num_parts = max(1, min(num_threads or len(os.sched_getaffinity(0)), len(table)))
    bounds = np.linspace(0, len(table), num_parts + 1).astype(int)

    def run_part(part: int) -> None:
        chosen = slice(bounds[part], bounds[part + 1])
        _run_many(*machine_for(problem, semantics, mode, keys, keep=False), table[chosen], makespans_s[chosen])

    if num_parts == 1:
        run_part(0)
    else:
        with ThreadPoolExecutor(num_parts) as pool:
            list(pool.map(run_part, range(num_parts)))
    return makespans_s


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _run_many(
    ops: Records,
    edges: Records,
    links: Records,
    time_s: FloatArray,
    op_factor: FloatArray,
    link_factor: FloatArray,
    devices: Records,
    buses: Records,
    queue: IntArray,
    bus_queue: IntArray,
    events: Records,
    records: Records,
    run: Records,
    placements: IntArray,
    makespans_s: FloatArray,
) -> float:
    """Fill ``makespans_s`` [B] and return its last entry; the arguments before ``placements`` are a Machine's."""
    last_s = np.inf
    for b in range(len(placements)):
        last_s = np.inf
        if load_placement(ops, time_s, op_factor, placements[b]):
            if run[0].mode == SEQUENTIAL:
                last_s = run_sequential(ops, edges, links, link_factor, devices, records, run)
            else:
                if run[0].mode == BY_PATH:
                    set_path_keys(ops, edges, links, time_s)
                last_s = run_work_conserving(
                    ops, edges, links, link_factor, devices, buses, queue, bus_queue, events, records, run
                )
        makespans_s[b] = last_s
    return last_s


def _ranks(priority: ArrayLike | None) -> FloatArray | None:
    return None if priority is None else np.asarray(priority, dtype=np.float64)


def _checked(problem: ScheduleProblem, placements: np.ndarray) -> IntArray:
    """[B, N] placements as the kernels take them."""
    if placements.ndim != 2 or placements.shape[1] != problem.num_ops:
        raise PlacementError(
            f"a placement must name a device for each of {problem.num_ops} ops, not {placements.shape}"
        )
    if placements.dtype.kind not in "iu" and placements.size:
        raise PlacementError(f"a placement must hold device indices, not {placements.dtype}")
    table = np.ascontiguousarray(placements, dtype=np.int64)
    if table.size and (table.min() < 0 or table.max() >= problem.num_devices):
        wrong = table[(table < 0) | (table >= problem.num_devices)][0]
        raise PlacementError(f"a placement names device {wrong}, but there are only {problem.num_devices}")
    return table


def _result(
    problem: ScheduleProblem, semantics: Semantics, ops: Records, records: Records, makespan_s: float
) -> Simulation:
    device = ops["device"].astype(np.int64)
    start_s, end_s = ops["start_s"].copy(), ops["end_s"].copy()
    records = records[np.lexsort((records["to"], records["op"], records["start_s"]))]
    op, to, size_bytes = records["op"].copy(), records["to"].copy(), records["size_bytes"].copy()
    transfers = Transfers(op, device[op], to, records["start_s"].copy(), records["end_s"].copy(), size_bytes)
    num_transfers, transfer_bytes = len(op), float(size_bytes.sum())
    if semantics.links is Links.EGRESS:
        largest = np.zeros(problem.num_ops)
        np.maximum.at(largest, op, size_bytes)
        num_transfers, transfer_bytes = len(np.unique(op)), float(largest.sum())
    return Simulation(
        semantics=semantics,
        makespan_s=makespan_s,
        device=device,
        start_s=start_s,
        end_s=end_s,
        transfers=transfers,
        num_transfers=num_transfers,
        transfer_bytes=transfer_bytes,
        busy_s=np.bincount(device, ops["duration_s"], problem.num_devices).astype(np.float64),
        peak_memory_bytes=peak_memory_bytes(problem, device, start_s, end_s, records),
    )
