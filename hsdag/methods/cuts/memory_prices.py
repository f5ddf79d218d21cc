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
from hsdag.methods.memory_repair import repaired
from hsdag.scoring.memory import MemoryCheck

NUM_RAISES, NUM_HALVINGS = 16, 10
"""Steps, each times four, from a low price of a byte to one that is high enough, and then back between the two."""


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
        mended = repaired(judge.problem, each, judge.semantics)
        if judge.fits(mended):
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
