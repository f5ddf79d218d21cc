"""Memory repair: ops moved off devices whose memory a placement exceeds. Legend: N ops, D devices."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.scoring.memory import MemoryCheck, over_memory

MOST_ROUNDS = 32
"""Simulations after which a repair gives up."""


def fastest_devices(problem: ScheduleProblem) -> IntArray:
    """[N] the device that runs each op fastest; ties by device index."""
    return np.asarray(np.argmin(np.where(problem.supported, problem.time_s, np.inf), axis=1), dtype=np.int64)


def repaired(problem: ScheduleProblem, placement: IntArray, semantics: Semantics) -> IntArray:
    """A placement [N] near ``placement`` that no memory is exceeded by, or ``placement`` where none is found.

    From the fullest device, the smallest op that frees enough, or else the largest, goes to the device with room
    for it that runs it fastest; ties by index. No op moves twice. The simulated peak memory is the judge.
    """
    if not np.isfinite(problem.memory_bytes).any():
        return placement
    judge = MemoryCheck(problem, semantics)
    device, movable = placement.copy(), np.ones(problem.num_ops, dtype=np.bool_)
    weights = np.asarray(np.bincount(device, problem.weight_bytes, problem.num_devices), dtype=np.float64)
    if over_memory(problem, weights).any():
        _relieve(problem, device, movable, weights, problem.weight_bytes)
    for _ in range(MOST_ROUNDS):
        held = judge.peak_bytes(device).copy()
        if not over_memory(problem, held).any():
            return device
        if not _relieve(problem, device, movable, held, problem.weight_bytes + problem.output_bytes):
            break
    return placement


def _relieve(
    problem: ScheduleProblem, device: IntArray, movable: BoolArray, held: FloatArray, size: FloatArray
) -> bool:
    """Move ops of ``size`` [N] until all devices seem to fit, or nothing can move; whether anything moved."""
    moved_any, stuck = False, np.zeros(problem.num_devices, dtype=np.bool_)
    while True:
        excess = np.where(stuck, -np.inf, held - problem.memory_bytes)
        excess[~over_memory(problem, held)] = -np.inf
        d = int(np.argmax(excess))
        if not np.isfinite(excess[d]):
            return moved_any
        move = _best_move(problem, device, movable & (size > 0), held, size, d)
        if move is None:
            stuck[d] = True
            continue
        v, to = move
        held[d] -= size[v]
        held[to] += size[v]
        device[v], movable[v], moved_any = to, False, True


def _best_move(
    problem: ScheduleProblem, device: IntArray, movable: BoolArray, held: FloatArray, size: FloatArray, d: int
) -> tuple[int, int] | None:
    """The op of device d to move, and where to."""
    ops = np.flatnonzero((device == d) & movable)
    room = problem.memory_bytes - held
    room[d] = -np.inf
    fits = problem.supported[ops] & (size[ops, None] <= room[None, :])
    able = fits.any(axis=1)
    ops, fits = ops[able], fits[able]
    if not len(ops):
        return None
    enough = size[ops] >= held[d] - problem.memory_bytes[d]
    wanted = np.where(enough, size[ops], np.inf) if enough.any() else -size[ops]
    i = int(np.argmin(wanted))
    to = int(np.argmin(np.where(fits[i], problem.time_s[ops[i]], np.inf)))
    return int(ops[i]), to
