"""Choice of the regions of a model that devices compute together, by dynamic programming over cut tensors.

Placing whole ops cannot speed up a chain, where one op is ready at a time. A region that several devices compute
together takes at least 1 / sum(1 / t_d), where t_d is the time of device d alone, plus the syncs at its ends. The model
falls into segments between tensors that all paths pass; for every run of segments there are a few ways to compute it,
and the cheapest sequence of ways is found exactly (docs/shards.md).

Legend: N ops, D devices, K segments.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.state import computed_once
from hsdag.ir.shards.regions import OpShapes, Region, Scheme
from hsdag.methods.shards.division import Divider, ShardCosts
from hsdag.methods.shards.finder import RegionFinder, bound_to_variables, uses_variable
from hsdag.methods.shards.segments import Segments
from hsdag.methods.shards.ways import EVERYWHERE, Layout, Way, WayFinder

MOST_SEGMENTS = 5
"""Largest number of segments divided as one region by rows; halos grow with each."""

SCHEMES: tuple[Scheme, ...] = ("rows", "hidden", "heads", "channels", "columns")
"""Schemes by which regions are divided."""


class _Reached(NamedTuple):
    """Cheapest way so far to have a cut tensor in one layout."""

    total_s: float
    before: Layout  # layout of the cut tensor that the last way starts from
    start: int  # index of that cut
    way: Way | None  # None at the beginning


@dataclass(frozen=True)
class Sharding:
    """A way to divide a model; those with equal regions and devices are equal.

    Attributes:
        regions: Regions that devices compute together.
        devices: Device of every op outside regions [N].
        predicted_s: Predicted seconds of an inference.
        bound_s: Predicted seconds without syncs.
    """

    regions: tuple[Region, ...]
    devices: tuple[int, ...]
    predicted_s: float = field(compare=False)
    bound_s: float = field(compare=False)

    def over(self, devices: Sequence[int]) -> Sharding:
        """Return the sharding with device k replaced by ``devices[k]``."""
        regions = tuple(replace(r, shares={devices[d]: share for d, share in r.shares.items()}) for r in self.regions)
        return replace(self, regions=regions, devices=tuple(devices[d] for d in self.devices))


@dataclass(eq=False)
class ShardChooser:
    """Chooser of the cheapest way to divide a model over devices.

    Args:
        shares: Share of each device [D] in every region; by default by the devices' speed for the region's ops,
            adjusted for halos and grains.
        schemes: Schemes that may be used. Branches are spread over devices only with all schemes and without
            ``shares``.
        pins: Devices of ops that are not divided.
    """

    shapes: OpShapes
    costs: ShardCosts
    shares: Sequence[float] | None = None
    schemes: Collection[Scheme] = SCHEMES
    pins: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bound, repeated = bound_to_variables(self.shapes.graph)
        pinned = self.pins.keys()
        once = np.flatnonzero(computed_once(self.shapes.graph)).tolist()
        kept = [v for v in bound if uses_variable(self.shapes, v)]
        self.pins = {**dict.fromkeys([*once, *kept], 0), **self.pins}
        self.segments = Segments(self.shapes, self.costs.time_s, self.pins, repeated, can_be_equal=not bound)
        self.divider = Divider(self.shapes, self.costs, self.segments.time_s, self.shares)
        self._regions = RegionFinder(self.shapes, self.schemes, pinned, bound, self.divider)
        self._sides = [v for v in self.segments.others if v not in self.pins and v not in bound]

    def ways(self, price: float = 1.0, *, has_home: bool = True) -> WayFinder:
        """Return the finder of the ways to compute a run of segments, for the arguments of ``best``."""
        home = int(self.divider.time_s.sum(axis=0).argmin())
        return WayFinder(
            self.shapes,
            self.costs,
            self.segments,
            self.divider,
            self._regions,
            self.pins,
            homes=(None, home) if has_home else (None,),
            spreads=self.shares is None and set(self.schemes) == set(SCHEMES),
            price=price,
        )

    def best(self, price: float = 1.0, *, has_home: bool = True) -> Sharding | None:
        """Return the cheapest way to divide the model; None if that divides nothing.

        Args:
            price: Factor of the seconds of syncs, to prefer larger or smaller regions.
            has_home: Whether the ops of a segment outside its divided regions may run on the fastest device alone, and
                not only on every device.
        """
        if not self.segments.main:
            return None
        ways = self.ways(price, has_home=has_home)
        cost = [{EVERYWHERE: _Reached(0.0, EVERYWHERE, 0, None)}]
        solved: dict[tuple[object, ...], tuple[int, list[Way]]] = {}
        for j in range(1, len(self.segments.main) + 1):
            reached: dict[Layout, _Reached] = {}
            for i in range(max(0, j - MOST_SEGMENTS), j):
                if (key := (i == 0, *self.segments.kinds[i:j])) not in solved:
                    solved[key] = i, ways.of(i, j)
                for way in solved[key][1]:
                    for layout, before in cost[i].items():
                        total_s = before.total_s + way.compute_s + way.sync_s + ways.sync_s(i, layout, way.reads)
                        if total_s < (reached[way.end].total_s if way.end in reached else np.inf):
                            reached[way.end] = _Reached(total_s, layout, i, self._moved(way, solved[key][0], i, j))
            cost.append(reached)
        count = len(self.segments.main)
        joined = {layout: last.total_s + ways.sync_s(count, layout, EVERYWHERE) for layout, last in cost[-1].items()}
        if not joined:  # pins separate ops that every way keeps together
            return None
        end = min(joined, key=joined.__getitem__)
        return self._followed_back(cost, end, joined[end], price)

    def _moved(self, way: Way, first: int, i: int, j: int) -> Way:
        """Translate a way to compute segments from ``first`` on to the equal segments i up to j."""
        if first == i:
            return way
        pairs = zip(self.segments.members[first : first + j - i], self.segments.members[i:j], strict=True)
        moved = {v: u for before, now in pairs for v, u in zip(before, now, strict=True)}
        regions = tuple(replace(r, ops=tuple(moved[v] for v in r.ops)) for r in way.regions)
        return replace(way, regions=regions, placed={moved[v]: d for v, d in way.placed.items()})

    def _followed_back(
        self, cost: list[dict[Layout, _Reached]], end: Layout, total_s: float, price: float
    ) -> Sharding | None:
        """Collect the ways that lead to layout ``end`` at the last cut; None if none of them has a region."""
        j, layout = len(cost) - 1, end
        ways = []
        while j > 0:
            _, before, i, way = cost[j][layout]
            assert way is not None  # only the beginning has no way
            ways.append((i, j, way))
            j, layout = i, before
        if not any(way.regions for _, _, way in ways):
            return None
        regions: list[Region] = []
        devices = np.array([self.pins.get(v, 0) for v in range(self.shapes.graph.num_ops)])
        everywhere = dict.fromkeys(range(self.divider.num_devices), (0, 1))
        inside = {v for *_, way in ways for region in way.regions for v in region.ops}
        repeated = [v for v in self._sides if v not in inside]
        for i, j, way in reversed(ways):
            ops = [v for segment in self.segments.main[i:j] for v in segment]
            regions += way.regions
            devices[list(way.placed)] = list(way.placed.values())
            rest = [v for v in ops if v not in inside and v not in way.placed]
            if way.device is None:
                repeated += rest
            else:
                devices[rest] = way.device
        light_s = np.array([each_s for v, each_s in enumerate(self.divider.time_s) if not self.segments.is_heavy(v)])
        order = light_s.sum(axis=0).argsort(kind="stable").tolist()  # the first device adds partial sums
        regions = [replace(r, shares={d: r.shares[d] for d in order if d in r.shares}) for r in regions]
        if repeated:
            regions.append(Region("replicated", tuple(sorted(repeated)), (None,) * len(repeated), everywhere))
        bound_s = sum(way.compute_s for *_, way in ways)
        predicted_s = bound_s + (total_s - bound_s) / price
        return Sharding(tuple(regions), tuple(devices.tolist()), predicted_s, bound_s)
