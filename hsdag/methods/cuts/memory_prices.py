"""Cuts within memory: a price per byte on full devices, found by bisection, and repairs of what is still too full.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.cuts.alpha_expansion import best_cut, expanded
from hsdag.methods.cuts.cut_graph import BoundaryCosts
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
    """[N, D] what a placement costs more with one op on another device; infinite where that does not support it.

    Launches are left out, and a result counts for each of its readers.
    """
    source, size = np.repeat(costs.source, np.diff(costs.first)), costs.size_bytes[:, None]
    home, away = placement[source], placement[costs.reader]
    seconds = costs.time_s.copy()
    np.add.at(seconds, costs.reader, costs.latency_s[home] + size * costs.s_per_byte[home])
    np.add.at(seconds, source, costs.latency_s[:, away].T + size * costs.s_per_byte[:, away].T)
    return np.asarray(seconds - np.take_along_axis(seconds, placement[:, None], axis=1), dtype=np.float64)
