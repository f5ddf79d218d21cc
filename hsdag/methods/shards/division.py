"""Division of a region of a model: the share of each device, and the seconds that devices take for their shares.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.ir.shards.regions import OpShapes, Region

UNEVEN = 1.05
"""Ratio of the slowest device's seconds to the mean from which on the bounds of a region are moved."""

MOST_MOVES = 4
"""Largest number of moves of a region's bounds."""


@dataclass(frozen=True, eq=False)
class ShardCosts:
    """Costs of divided ops and of the syncs between them.

    Attributes:
        time_s: Seconds of each whole op on each device alone, NaN where it does not run [N, D].
        slowdown: Factor of each device's times while the others work [D].
        launch_s: Seconds to start a part, in each sync.
        s_per_byte: Seconds to write and read a byte in a sync.
        fixed_s: Seconds of ``time_s`` that even the smallest piece of an op takes [N, D].
    """

    time_s: FloatArray
    slowdown: FloatArray
    launch_s: float
    s_per_byte: float
    fixed_s: FloatArray | float = 0.0

    def sync_s(self, size_bytes: float) -> float:
        """Return the seconds of a sync that passes this many bytes from part to part."""
        return self.launch_s + size_bytes * self.s_per_byte

    def of(self, devices: Sequence[int]) -> ShardCosts:
        """Return the costs of some of the devices."""
        chosen = list(devices)
        fixed_s = np.broadcast_to(self.fixed_s, self.time_s.shape)[:, chosen]
        return replace(self, time_s=self.time_s[:, chosen], slowdown=self.slowdown[chosen], fixed_s=fixed_s)


@dataclass(frozen=True)
class RegionFigures:
    """Predicted seconds of a region.

    Attributes:
        whole_s: On the fastest device alone.
        bound_s: Least seconds of any division, by the harmonic sum of the devices' speeds.
        divided_s: As it is divided, without syncs.
        sync_s: Syncs at its ends; consecutive regions share some of them.
    """

    whole_s: float
    bound_s: float
    divided_s: float
    sync_s: float

    @property
    def pays(self) -> bool:
        """Return whether dividing this region alone gains anything."""
        return self.divided_s + self.sync_s < self.whole_s


class Divider:
    """Divider of regions over devices.

    Args:
        time_s: Seconds of each op on each device, infinite where it does not run [N, D].
        shares: Share of each device [D] in every region; by default by the devices' speed for the region's ops,
            adjusted for halos and grains.

    Attributes:
        busy_s: Seconds of each op on each device while the others work [N, D].
    """

    def __init__(
        self, shapes: OpShapes, costs: ShardCosts, time_s: FloatArray, shares: Sequence[float] | None = None
    ) -> None:
        self._shapes = shapes
        self._costs = costs
        self._shares = shares
        self.time_s = time_s
        self.busy_s = time_s * costs.slowdown
        self._fixed_s = np.minimum(costs.fixed_s, time_s)

    @property
    def num_devices(self) -> int:
        """Return D."""
        return int(self.time_s.shape[1])

    def figures(self, region: Region) -> RegionFigures:
        """Return the predicted seconds of a region with shares, on one device and divided."""
        each_s, alone_s = self._region_s(region), self.time_s[list(region.ops)].sum(axis=0)
        assert each_s is not None  # its shares come from a way that was found possible
        end_bytes = float(self._shapes.graph.output_bytes[region.ops[-1]])
        sync_s = self._costs.sync_s(end_bytes) + self._costs.sync_s(self._read_bytes(region))
        bound_s = 1.0 / float((1.0 / np.maximum(alone_s[list(region.shares)], 1e-12)).sum())
        return RegionFigures(float(alone_s.min()), bound_s, float(each_s.max()), sync_s)

    def shared(self, region: Region, names: Sequence[int]) -> Region | None:
        """Give a region the shares with which all devices end together; None if it cannot be divided.

        Device d is called ``names[d]`` in the result.
        """
        grain = self._shapes.grain(region)
        made = grain and self.with_shares(region, grain, np.zeros(self.num_devices))
        return replace(region, shares={names[d]: share for d, share in made[0].shares.items()}) if made else None

    def with_shares(self, region: Region, grain: int, wait_s: FloatArray) -> tuple[Region, FloatArray, float] | None:
        """Give a region its shares; None if fewer than two devices get one.

        Args:
            grain: Multiple to which bounds between shares are rounded.
            wait_s: Seconds that each device waits before and after its share [D].

        Returns the region, the seconds at which devices end [D], and the most bytes that one of them reads.
        """
        extent = self._shapes.extent(region)
        if (shares := self._shares) is None:
            whole_s, fixed_s = (table[list(region.ops)].sum(axis=0) for table in (self.busy_s, self._fixed_s))
            shares = even_shares(whole_s - fixed_s, wait_s + fixed_s).tolist()
        bounds = [0, *(round(extent * share / grain) * grain for share in np.cumsum(shares)[:-1]), extent]
        made = self._balanced(region, grain, bounds, wait_s)
        if made is None or len(made[0].shares) < 2:
            return None
        return *made, self._read_bytes(made[0])

    def _balanced(
        self, region: Region, grain: int, bounds: Sequence[int], wait_s: FloatArray
    ) -> tuple[Region, FloatArray] | None:
        """Give a region shares as ``_with_bounds`` does, then move bounds by a grain while that ends it earlier.

        Bounds stay if the user gave shares.
        """
        divided = self._with_bounds(region, bounds, wait_s)
        for _ in range(0 if self._shares else MOST_MOVES):
            if divided is None:
                break
            ends_s = divided[1]
            if ends_s.max() < UNEVEN * ends_s[list(divided[0].shares)].mean():
                break
            slowest = int(ends_s.argmax())
            steps = [(at, step) for at, step in ((slowest, grain), (slowest + 1, -grain)) if 0 < at < len(bounds) - 1]
            others = [[b + step * (k == at) for k, b in enumerate(bounds)] for at, step in steps]
            made = [(other, at) for at in others if (other := self._with_bounds(region, at, wait_s)) is not None]
            best = min(made, key=lambda moved: float(moved[0][1].max()), default=None)
            if best is None or best[0][1].max() >= ends_s.max():
                break
            divided, bounds = best
        return divided

    def _with_bounds(
        self, region: Region, bounds: Sequence[int], wait_s: FloatArray
    ) -> tuple[Region, FloatArray] | None:
        """Give a region the shares between ``bounds`` and return it with the seconds at which devices end [D].

        None if the region cannot be divided at these bounds.
        """
        region = replace(region, shares={d: (a, b) for d, (a, b) in enumerate(itertools.pairwise(bounds)) if a < b})
        each_s = self._region_s(region)
        return None if each_s is None else (region, np.where(each_s > 0, each_s + wait_s, 0.0))

    def _region_s(self, region: Region) -> FloatArray | None:
        """Return the seconds of each device for its share with halos [D]; None if the shares are impossible."""
        taken_s = np.zeros(self.num_devices)
        for d, (first, last) in region.shares.items():
            pieces = self._shapes.pieces(region, d)
            share = (last - first) / self._shapes.extent(region)
            if pieces is None:
                return None
            ops = list(pieces)
            fixed_s = self._fixed_s[ops, d]
            work = np.array([self._shapes.work_of(v, *piece, share) for v, piece in pieces.items()])
            taken_s[d] = fixed_s.sum() + work @ (self.busy_s[ops, d] - fixed_s)
        return taken_s

    def _read_bytes(self, region: Region) -> float:
        """Return the most bytes that one device reads from outside a region for its share and halos."""
        most_bytes = 0.0
        for d in region.shares:
            pieces = self._shapes.pieces(region, d) or {}
            reads: dict[int, float] = {}
            for v, (_, piece) in pieces.items():
                for port, need in enumerate(piece.inputs):
                    u = self._shapes.producer(v, port)
                    if u >= 0 and u not in pieces and self._shapes.runs[u]:
                        length = 1 if need is None else self._shapes.op(u).outputs[0][need.axis]
                        part = 1.0 if need is None else (need.last - need.first) / length
                        reads[u] = max(reads.get(u, 0.0), part * float(self._shapes.graph.output_bytes[u]))
            most_bytes = max(most_bytes, sum(reads.values()))
        return most_bytes


def even_shares(whole_s: FloatArray, wait_s: FloatArray) -> FloatArray:
    """Return the shares of work [D] with which all devices end at the same time; 0 for one that would start too late.

    Args:
        whole_s: Seconds of each device for all of the work [D].
        wait_s: Seconds that each device waits first [D]; 0 for at least one.
    """
    speed = 1.0 / np.maximum(whole_s, 1e-12)
    takes = np.ones(len(whole_s), dtype=np.bool_)
    while True:
        end_s = (1.0 + (wait_s * speed)[takes].sum()) / speed[takes].sum()
        if not (late := takes & (wait_s >= end_s)).any():
            return np.where(takes, (end_s - wait_s) * speed, 0.0)
        takes &= ~late
