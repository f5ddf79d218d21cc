"""Alpha-expansion: placements on any number of devices by minimum cuts, one device at a time.

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
"""A move has to gain more than this share: rounding."""

MAX_STARTS = 4
"""Starts that are expanded, the cheapest first."""

MAX_SWEEPS = 20
"""Rounds over all devices; three or four are usual."""

MAX_PAIRS = 28
"""Pairs of devices that are cut, those first that could be cheapest: all pairs of eight devices."""


def expanded(costs: BoundaryCosts, placement: IntArray, is_over: Callable[[], bool] = lambda: False) -> IntArray:
    """``placement`` [N] after moves of ops to one device at a time, until no device gains by one or time is over.

    Never dearer than ``placement``. With equal links between all devices the result takes at most the work of the
    optimum and twice its transfers, were there no difference between the launches; see docs/exact.md for others.
    """
    best, best_s = placement, costs.cost_s(placement)
    idle, device = 0, 0
    for _ in range(MAX_SWEEPS * costs.num_devices):
        if is_over():
            break
        move = best_move(costs, best, device)
        device = (device + 1) % costs.num_devices
        found = best if move is None else move.placement
        cost_s = costs.cost_s(found)
        idle += 1
        if cost_s < best_s - LEAST_GAIN * abs(best_s):
            best, best_s = found, cost_s
            idle = 1
        if idle > costs.num_devices - 1:
            break
    return best


def cheapest(costs: BoundaryCosts, is_over: Callable[[], bool] = lambda: False) -> Iterator[IntArray]:
    """Ever cheaper placements [N]: the best simple one, the best cut between two devices, what expansion makes of them.

    Starts are the best single device, every op on its fastest device, and the cuts of pairs of devices. With two
    devices the cut is optimal and the last. Where time is over, what there is so far.
    """
    starts = simple(costs)
    cuts = []
    for one, other in _pairs(costs):
        if is_over():
            break
        if (cut := pair_cut(costs, one, other)) is not None:
            cuts.append(cut.placement)
    found = sorted([*cuts, *starts], key=costs.cost_s)[:MAX_STARTS] if costs.num_devices > 2 else []
    more = (expanded(costs, each, is_over) for each in found)
    best_s = np.inf
    for placement in [starts[0], *sorted(cuts, key=costs.cost_s)[:1], *more]:
        cost_s = costs.cost_s(placement)
        if cost_s < best_s - LEAST_GAIN * abs(best_s) or not np.isfinite(best_s):
            best_s = cost_s
            yield placement


def best_cut(costs: BoundaryCosts, is_over: Callable[[], bool] = lambda: False) -> IntArray:
    """The cheapest placement [N] found: optimal for two devices."""
    *_, last = cheapest(costs, is_over)
    return last


def _pairs(costs: BoundaryCosts) -> list[tuple[int, int]]:
    """Pairs of devices to cut between, by the sum of each op's time on the faster of the two, which no cut beats."""
    pairs = itertools.combinations(range(costs.num_devices), 2)
    by_device = np.ascontiguousarray(costs.time_s.T)
    return sorted(pairs, key=lambda pair: float(np.minimum(by_device[pair[0]], by_device[pair[1]]).sum()))[:MAX_PAIRS]


def simple(costs: BoundaryCosts) -> list[IntArray]:
    """Every single device that runs all ops, and every op on its fastest device; cheapest first."""
    found = [np.full(costs.num_ops, d, dtype=np.int64) for d in np.flatnonzero(np.isfinite(costs.time_s).all(axis=0))]
    found.append(costs.time_s.argmin(axis=1).astype(np.int64))
    return sorted(found, key=costs.cost_s)
