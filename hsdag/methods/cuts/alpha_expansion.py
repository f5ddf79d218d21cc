"""Alpha-expansion: find placements on any number of devices by minimum cuts, one device at a time.

Y. Boykov, O. Veksler and R. Zabih, "Fast approximate energy minimization via graph cuts", 2001, sections 3 and 6, with
transfers as hyperedges.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.cuts.cut_graph import BoundaryCosts, best_move, pair_cut

LEAST_GAIN = 1e-12
"""Ignore gains of at most this share of the cost, which may be rounding."""

MAX_STARTS = 4
"""Expand at most this many starts, the cheapest first."""

MAX_SWEEPS = 20
"""Stop after this many rounds over all devices; three or four are usual."""

MAX_PAIRS = 28
"""Cut at most this many pairs of devices, those that could be cheapest first; 28 are all pairs of eight devices."""


def expanded(costs: BoundaryCosts, placement: IntArray, is_over: Callable[[], bool] = lambda: False) -> IntArray:
    """Move ops of ``placement`` [N] to one device at a time, until no device gains by that or time is over.

    The result never costs more than ``placement``. With equal links between all devices it takes at most the work of
    the optimum plus twice its transfers, if launches cost the same everywhere; docs/exact.md covers other cases.
    """
    best, best_s = placement, costs.cost_s(placement)
    settled = 0  # devices in a row to which no further op moves with a gain
    for device in itertools.islice(itertools.cycle(range(costs.num_devices)), MAX_SWEEPS * costs.num_devices):
        if is_over() or settled == costs.num_devices:
            break
        settled += 1
        if (move := best_move(costs, best, device)) is not None:
            cost_s = costs.cost_s(move.placement)
            if cost_s < best_s - LEAST_GAIN * abs(best_s):
                best, best_s, settled = move.placement, cost_s, 1
    return best


def cheapest(costs: BoundaryCosts, is_over: Callable[[], bool] = lambda: False) -> Iterator[IntArray]:
    """Yield ever cheaper placements [N]: the best simple one, the best cut of two devices, and their expansions.

    Starts are the best single device, every op on its fastest device, and cuts between pairs of devices. With two
    devices the cut is optimal and comes last. Stops early when time is over.
    """
    starts = simple(costs)
    cuts = []
    for one, other in _pairs(costs):
        if is_over():
            break
        if (cut := pair_cut(costs, one, other)) is not None:
            cuts.append(cut.placement)
    quickest = sorted([*cuts, *starts], key=costs.cost_s)[:MAX_STARTS] if costs.num_devices > 2 else []
    more = (expanded(costs, start, is_over) for start in quickest)
    best_s = np.inf
    for placement in [starts[0], *sorted(cuts, key=costs.cost_s)[:1], *more]:
        cost_s = costs.cost_s(placement)
        if cost_s < best_s - LEAST_GAIN * abs(best_s) or not np.isfinite(best_s):
            best_s = cost_s
            yield placement


def best_cut(costs: BoundaryCosts, is_over: Callable[[], bool] = lambda: False) -> IntArray:
    """Return the cheapest placement [N] that ``cheapest`` finds; it is optimal for two devices."""
    *_, last = cheapest(costs, is_over)
    return last


def _pairs(costs: BoundaryCosts) -> list[tuple[int, int]]:
    """Return pairs of devices to cut between, by a lower bound: the sum of each op's time on the faster of the two."""
    pairs = itertools.combinations(range(costs.num_devices), 2)
    by_device = np.ascontiguousarray(costs.time_s.T)
    return sorted(pairs, key=lambda pair: float(np.minimum(by_device[pair[0]], by_device[pair[1]]).sum()))[:MAX_PAIRS]


def simple(costs: BoundaryCosts) -> list[IntArray]:
    """Return every single device that runs all ops, and every op on its fastest device; cheapest first."""
    able = np.flatnonzero(np.isfinite(costs.time_s).all(axis=0))
    alone = [np.full(costs.num_ops, d, dtype=np.int64) for d in able]
    return sorted([*alone, costs.time_s.argmin(axis=1).astype(np.int64)], key=costs.cost_s)
