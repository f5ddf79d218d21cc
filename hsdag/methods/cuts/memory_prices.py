"""Cuts within memory: a price per byte on full devices, found by bisection, and repairs of what is still too full.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.ir.kernels import kernel
from hsdag.methods.cuts.alpha_expansion import best_cut, expanded
from hsdag.methods.cuts.cut_graph import BoundaryCosts, sent_s
from hsdag.scoring.memory import MemoryCheck, over_memory

NUM_RAISES, NUM_HALVINGS = 16, 10
"""Steps, each times four, from a low price of a byte to one that is high enough, and then back between the two."""

MAX_REPAIRS = 400
"""Rounds of a repair; each relieves a device of a quarter of its excess, or of one op."""


def fitting(costs: BoundaryCosts, judge: MemoryCheck, is_over: Callable[[], bool]) -> Iterator[IntArray]:
    """Placements [N] that fit into memory, from the cheapest cut on.

    Where that does not fit, the fullest device charges for bytes, as little as makes it fit (the Lagrangian of its
    limit), then the next one. What is still too full is repaired. ``is_over`` is asked between any two steps.
    """
    placement = best_cut(costs, is_over)
    if judge.fits(placement):
        yield placement
        return
    for each in itertools.chain([placement], _priced(costs, judge, placement, is_over)):
        if is_over():
            return
        mended = _repaired(costs, judge, each)
        if mended is not None:
            yield mended


def _priced(
    costs: BoundaryCosts, judge: MemoryCheck, placement: IntArray, is_over: Callable[[], bool]
) -> Iterator[IntArray]:
    """Placements under the least prices that relieve one device after another: just not, and just."""
    prices = np.zeros(costs.num_devices)
    for _ in range(costs.num_devices):
        room = judge.problem.memory_bytes - judge.peak_bytes(placement)
        device = int(np.argmin(room))
        if is_over() or not judge.overfull(placement)[device]:
            return
        just_not, placement = _relieved(costs, judge, placement, prices, device, is_over)
        yield just_not
        yield placement


def _relieved(
    costs: BoundaryCosts,
    judge: MemoryCheck,
    placement: IntArray,
    prices: FloatArray,
    device: int,
    is_over: Callable[[], bool],
) -> tuple[IntArray, IntArray]:
    """Placements [N] just before and just after a device is relieved, whose price of a byte goes into ``prices`` [D].

    Where time is over sooner, they are as near as the search has come.
    """

    def at(price: float) -> tuple[IntArray, bool]:
        prices[device] = price
        dear = costs.priced(judge.held_bytes, prices)
        found = best_cut(dear) if costs.num_devices == 2 else expanded(dear, placement, is_over)
        return found, bool(judge.overfull(found)[device])

    finite_s = costs.time_s[np.isfinite(costs.time_s)]
    mean_price = max(float(finite_s.mean()), 1e-12) * costs.num_ops / max(float(judge.held_bytes.sum()), 1.0)
    low, below, high = 0.0, placement, 0.01 * mean_price
    above, is_full = at(high)
    for _ in range(NUM_RAISES):
        if is_over() or not is_full:
            break
        low, below, high = high, above, 4 * high
        above, is_full = at(high)
    for _ in range(NUM_HALVINGS):
        if is_over():
            break
        middle = (low + high) / 2
        found, is_full = at(middle)
        if is_full:
            low, below = middle, found
        else:
            high, above = middle, found
    prices[device] = high
    return below, above


def _repaired(costs: BoundaryCosts, judge: MemoryCheck, placement: IntArray) -> IntArray | None:
    """A placement that fits, by single moves off overfull devices that cost least per byte; None where moves end."""
    placement = placement.copy()
    for _ in range(MAX_REPAIRS):
        peak_bytes = judge.peak_bytes(placement)
        if not over_memory(judge.problem, peak_bytes).any():
            return placement
        if not _relieve(costs, judge.held_bytes, placement, judge.problem.memory_bytes - peak_bytes):
            return None
    return None


def _relieve(costs: BoundaryCosts, held_bytes: FloatArray, placement: IntArray, room: FloatArray) -> bool:
    """Move ops off the device with the least ``room`` [D] to where there is some; whether any could be."""
    device, moved = int(np.argmin(room)), False
    extra_s = move_costs_s(costs, placement)
    possible = np.isfinite(extra_s) & (held_bytes[:, None] > 0) & (held_bytes[:, None] <= room[None, :])
    possible &= (placement == device)[:, None]
    possible[:, device] = False
    ops, targets = np.nonzero(possible)
    wanted = -room[device] / 4
    for i in np.argsort(extra_s[ops, targets] / held_bytes[ops], kind="stable").tolist():
        v, target = ops[i], targets[i]
        if placement[v] == device and held_bytes[v] <= room[target]:
            placement[v], moved = target, True
            room[target] -= held_bytes[v]
            wanted -= held_bytes[v]
            if wanted <= 0:
                break
    return moved


def move_costs_s(costs: BoundaryCosts, placement: IntArray) -> FloatArray:
    """[N, D] what a placement costs more with one op on another device; infinite where that does not support it."""
    results = np.repeat(np.arange(len(costs.source)), np.diff(costs.first))
    own = np.searchsorted(costs.source, np.arange(costs.num_ops + 1)).astype(np.int64)
    by_reader = np.argsort(costs.reader, kind="stable")
    first_read = np.searchsorted(costs.reader[by_reader], np.arange(costs.num_ops + 1)).astype(np.int64)
    labels = np.ascontiguousarray(placement, dtype=np.int64).copy()
    extra_s = _move_costs_s(costs, labels, own, first_read, results[by_reader])
    return extra_s + _change_costs_s(costs, labels)


def _change_costs_s(costs: BoundaryCosts, placement: IntArray) -> FloatArray:
    """[N, D] what changes of device cost more with one op on another device."""
    line, devices = placement[costs.order], np.arange(costs.num_devices)
    around_s = np.zeros((costs.num_ops, costs.num_devices))
    around_s[1:] += np.where(line[:-1, None] != devices, costs.change_s, 0.0)
    around_s[:-1] += np.where(devices != line[1:, None], costs.change_s[line[1:], None], 0.0)
    extra_s = np.empty_like(around_s)
    extra_s[costs.order] = around_s - np.take_along_axis(around_s, line[:, None], axis=1)
    return extra_s


@kernel
def _move_costs_s(
    t: BoundaryCosts, placement: IntArray, own: IntArray, first_read: IntArray, read: IntArray
) -> FloatArray:
    """See ``move_costs_s``; op v has the results from ``own[v]`` to ``own[v + 1] - 1``.

    It reads ``read[first_read[v]:first_read[v + 1]]``.
    """
    extra_s = np.zeros(t.time_s.shape)
    for v in range(len(placement)):
        home, near = placement[v], read[first_read[v] : first_read[v + 1]]
        before_s = t.time_s[v, home] + _near_s(t, own[v], own[v + 1], near, placement)
        for d in range(t.time_s.shape[1]):
            if d != home:
                placement[v] = d
                extra_s[v, d] = t.time_s[v, d] + _near_s(t, own[v], own[v + 1], near, placement) - before_s
        placement[v] = home
    return extra_s


@kernel
def _near_s(t: BoundaryCosts, begin: int, end: int, near: IntArray, placement: IntArray) -> float:
    """Seconds of the transfers of the results from ``begin`` to ``end - 1`` and of those in ``near``."""
    reached = np.full(len(t.latency_s), -1, dtype=np.int64)
    total_s = 0.0
    for q in range(begin, end):
        total_s += sent_s(t, q, placement, reached)
    for i in range(len(near)):
        total_s += sent_s(t, near[i], placement, reached)
    return total_s
