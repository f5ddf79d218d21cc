"""Memory repair: ops moved off devices whose memory a placement exceeds. Legend: N ops, D devices."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.scoring.memory import MemoryCheck

MOST_ROUNDS = 100
"""Simulations after which a repair gives up; each round relieves a device of a quarter of its excess, or of one op."""


def fastest_devices(problem: ScheduleProblem) -> IntArray:
    """[N] the device that runs each op fastest; ties by device index."""
    return np.asarray(np.argmin(np.where(problem.supported, problem.time_s, np.inf), axis=1), dtype=np.int64)


def repaired(problem: ScheduleProblem, placement: IntArray, semantics: Semantics) -> IntArray:
    """A placement [N] near ``placement`` that no memory is exceeded by, or ``placement`` where none is found.

    Ops leave the fullest device for others with room, those first that cost least for each byte. The simulated peak
    memory is the judge.
    """
    check = MemoryCheck(problem, semantics)
    device = placement.copy()
    for _ in range(MOST_ROUNDS):
        if check.fits(device):
            return device
        if not _relieve(problem, check.resident_bytes, device, problem.memory_bytes - check.peak_bytes(device)):
            break
    return placement


def _relieve(problem: ScheduleProblem, resident_bytes: FloatArray, device: IntArray, room: FloatArray) -> bool:
    """Move ops off the device with the least ``room`` [D] to where there is some; whether any could be."""
    full = int(np.argmin(room))
    moved = False
    extra_s = move_costs_s(problem, device)
    possible = np.isfinite(extra_s) & (resident_bytes[:, None] > 0) & (resident_bytes[:, None] <= room[None, :])
    possible &= (device == full)[:, None]
    possible[:, full] = False
    ops, targets = np.nonzero(possible)
    wanted = -room[full] / 4
    for i in np.argsort(extra_s[ops, targets] / resident_bytes[ops], kind="stable").tolist():
        v, target = ops[i], targets[i]
        if device[v] == full and resident_bytes[v] <= room[target]:
            device[v] = target
            moved = True
            room[target] -= resident_bytes[v]
            wanted -= resident_bytes[v]
            if wanted <= 0:
                break
    return moved


def move_costs_s(problem: ScheduleProblem, device: IntArray) -> FloatArray:
    """[N, D] what a placement [N] costs more, in turn, with one op on another device; infinite where that lacks it.

    Launches are left out, and a result counts for each of its readers.
    """
    src, dst, size = problem.edge_src, problem.edge_dst, problem.edge_bytes[:, None]
    off = ~np.eye(problem.num_devices, dtype=np.bool_)
    latency_s = np.where(off, problem.link_latency_s + problem.transfer_overhead_s, 0.0)
    s_per_byte = np.where(off, 1.0 / problem.link_bandwidth_bytes_per_s, 0.0)
    seconds = np.where(problem.supported, problem.time_s, np.inf)
    np.add.at(seconds, dst, latency_s[device[src]] + size * s_per_byte[device[src]])
    np.add.at(seconds, src, latency_s[:, device[dst]].T + size * s_per_byte[:, device[dst]].T)
    return np.asarray(seconds - np.take_along_axis(seconds, device[:, None], axis=1), dtype=np.float64)
