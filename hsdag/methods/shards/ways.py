"""Ways to compute a run of segments on one device, by divided regions, or with a device for each branch.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.ir.shards.regions import OpShapes, Region, Scheme
from hsdag.methods.shards.division import Divider, ShardCosts
from hsdag.methods.shards.finder import End, RegionFinder
from hsdag.methods.shards.segments import Segments

MOST_ASSIGNMENTS = 256
"""Number of assignments of branches to devices up to which all are tried; branches are not spread if there are more."""

Layout: TypeAlias = tuple[int, ...]
"""Layout of a cut tensor: (d,) on device d, () on every device, (axis, bounds...) divided along an axis."""

EVERYWHERE: Layout = ()
"""Layout of a tensor that every device has as a whole."""


@dataclass(frozen=True, eq=False)
class Way:
    """A way to compute a run of segments."""

    end: Layout  # layout of its result
    regions: tuple[Region, ...]
    device: int | None  # device of the ops outside regions; None if every device computes them
    compute_s: float
    sync_s: float
    reads: Layout  # layout in which it needs its input
    placed: Mapping[int, int] = field(default_factory=dict)  # devices of ops placed one by one


@dataclass(frozen=True, eq=False)
class _Division:
    """A region with shares, and its seconds."""

    region: Region
    each_s: FloatArray  # [D] work of each device
    span_s: float  # until all devices have ended
    sync_s: tuple[float, float]  # syncs at its end and at its beginning


@dataclass(frozen=True, eq=False)
class WayFinder:
    """Finder of the ways to compute a run of segments.

    Args:
        pins: Devices of ops that are not divided.
        homes: Devices that may run the ops outside divided regions alone; None for all devices at once.
        spreads: Whether branches may be spread over devices.
        price: Factor of the seconds of syncs.
    """

    shapes: OpShapes
    costs: ShardCosts
    segments: Segments
    divider: Divider
    regions: RegionFinder
    pins: Mapping[int, int]
    homes: Sequence[int | None]
    spreads: bool
    price: float

    def of(self, i: int, j: int) -> list[Way]:
        """Return the ways to compute segments i up to j."""
        ops = [v for segment in self.segments.main[i:j] for v in segment]
        ways: list[Way] = []
        if j == i + 1:
            total = self.divider.time_s[ops].sum(axis=0)
            pinned = {self.pins[v] for v in ops if v in self.pins}
            allowed = [d for d in range(self.divider.num_devices) if pinned <= {d}]
            ways += [Way((d,), (), d, float(total[d]), 0.0, (d,)) for d in allowed]
            ways += self._branches(ops) if self.spreads else []
        if j == i + 1 or self.shapes.op(ops[-1]).type == "MatMul":
            ways += [way for home in self.homes for way in self._inner(ops, home, needs_all=j > i + 1)]
        return ways + self._rows(i, ops, needs_all=j > i + 1)

    def _inner(self, ops: Sequence[int], home: int | None, *, needs_all: bool) -> list[Way]:
        """Return the way that divides the heavy ops by partial sums, channels or columns, if there is one.

        The other ops run on every device, or on ``home``. With a home, the other devices wait for their inputs and send
        their results back, so they get smaller shares. If ``needs_all``, all ops must form one partial sum.
        """
        heavy = sorted((v for v in ops if self.segments.is_heavy(v)), reverse=True)[: 1 if needs_all else None]
        chosen: list[_Division] = []
        taken: set[int] = set()
        for v in heavy:
            if v in taken:
                continue
            schemes: list[tuple[Scheme, int | None]] = [("channels", None), ("channels", 1)]
            if (op := self.shapes.op(v)).type == "MatMul":
                schemes = [("hidden", None)] if needs_all else [("hidden", None), ("columns", op.rank - 1)]
            made = [self._divided(End(scheme, v, axis, ops[0], frozenset(taken)), home) for scheme, axis in schemes]
            best = max(filter(None, made), key=lambda division: self._gain(division, home), default=None)
            if best is not None and self._gain(best, home) > 0:
                chosen.append(best)
                taken |= set(best.region.ops)
        rest = [v for v in ops if v not in taken]
        if self.pins.keys() & set(rest) or (needs_all and rest) or (home is not None and not chosen):
            return []
        regions = tuple(division.region for division in chosen)
        compute_s = float(sum(division.each_s.max() for division in chosen))
        if home is None:
            rest_s = float(self.divider.busy_s[rest].sum(axis=0).max())
            sync_s = sum(division.sync_s[0] for division in chosen)
            return [Way(EVERYWHERE, regions, None, compute_s + rest_s, sync_s, EVERYWHERE)]
        rest_s = float(self.divider.time_s[rest, home].sum())
        sync_s = sum(division.span_s for division in chosen) - compute_s
        return [Way((home,), regions, home, compute_s + rest_s, sync_s, (home,))]

    def _branches(self, ops: Sequence[int]) -> list[Way]:
        """Return the way that puts each branch of the segment on one device, if that uses several devices.

        Branches share no ops and no inputs other than that of the segment.
        """
        branches: list[set[int]] = []
        for v in ops[:-1]:
            read = set(self.shapes.graph.predecessors.of(v).tolist())
            joined = {v}.union(*(branch for branch in branches if branch & read))
            branches = [*(branch for branch in branches if not branch & read), joined]
        num_devices = self.divider.num_devices
        if len(branches) < 2 or num_devices ** len(branches) > MOST_ASSIGNMENTS or self.pins.keys() & set(ops):
            return []
        each_s = np.array([self.divider.busy_s[list(branch)].sum(axis=0) for branch in branches])
        ends = set(self.shapes.graph.predecessors.of(ops[-1]).tolist())
        each_bytes = np.array([self.shapes.graph.output_bytes[list(branch & ends)].sum() for branch in branches])
        device = np.array(list(np.ndindex(*[num_devices] * len(branches))))
        has = device[:, :, None] == np.arange(num_devices)
        takes_s = (has * each_s).sum(axis=1).max(axis=1)
        sync_s = self.price * (
            self.costs.launch_s + self.costs.s_per_byte * (~has * each_bytes[:, None]).sum(axis=1).max(axis=1)
        )
        best = int((takes_s + sync_s).argmin())
        if len(set(device[best].tolist())) < 2:
            return []
        placed = {v: d for branch, d in zip(branches, device[best].tolist(), strict=True) for v in branch}
        compute_s = float(takes_s[best] + self.divider.busy_s[ops[-1]].max())
        return [Way(EVERYWHERE, (), None, compute_s, float(sync_s[best]), EVERYWHERE, placed)]

    def _gain(self, division: _Division, home: int | None) -> float:
        """Return the seconds that a divided region gains over the fastest device alone."""
        whole_s = self.divider.time_s[list(division.region.ops)].sum(axis=0).min()
        return float(whole_s - division.span_s - (division.sync_s[0] if home is None else 0.0))

    def _divided(self, end: End, home: int | None = None) -> _Division | None:
        """Return the region with this end and its seconds; None if there is none that can be divided.

        If its input and result are on a ``home`` device, the others start later and must end earlier.
        """
        wait_s = np.zeros(self.divider.num_devices)
        if home is not None and (without_home := self._divided(end)) is not None:
            wait_s += sum(without_home.sync_s)
            wait_s[home] = 0.0
        if (made := self.regions.shared(end, wait_s)) is None:
            return None
        region, ends_s, read_bytes = made
        size = float(self.shapes.graph.output_bytes[end.last])
        shares = [(b - a) / self.shapes.extent(region) for a, b in region.shares.values()]
        written, read = (1.0, len(shares)) if end.axis is None else (max(shares), 1.0)  # own parts are read too
        end_s = self.price * self.costs.sync_s(size * (written + read) / 2)
        read_s = self.price * self.costs.sync_s(read_bytes) if read_bytes else 0.0
        return _Division(region, np.maximum(ends_s - wait_s, 0.0), float(ends_s.max()), (end_s, read_s))

    def _rows(self, i: int, ops: Sequence[int], *, needs_all: bool) -> list[Way]:
        """Return the ways that divide the region that ends in the last op along an axis of its result."""
        last = ops[-1]
        op = self.shapes.op(last)
        ways = []
        for axis in range(op.rank):
            if op.outputs[0][axis] < self.divider.num_devices:
                continue
            end = End("rows", last, axis, ops[0])
            undivided = self.regions.undivided(end)
            inside = frozenset(undivided[0].ops if undivided else ())
            rest = [v for v in ops if v not in inside]
            if not inside or any(self.segments.is_heavy(v) or v in self.pins for v in rest) or (needs_all and rest):
                continue
            if (division := self._divided(end)) is None:
                continue
            layout = axis, *(b for _, b in division.region.shares.values())
            compute_s = float((division.each_s + self.divider.busy_s[rest].sum(axis=0)).max())
            sync_s = division.sync_s[1] if i > 0 else 0.0
            ways.append(Way(layout, (division.region,), None, compute_s, sync_s, layout))
        return ways

    def sync_s(self, i: int, made: Layout, wanted: Layout) -> float:
        """Return the seconds to bring the result of the first i segments from one layout to another."""
        if i == 0 or made in (wanted, EVERYWHERE) or (len(made) == 1 and i == len(self.segments.main)):
            return 0.0
        if len(made) > 1 and len(wanted) > 1 and made[0] == wanted[0]:
            return 0.0  # the same axis: the halo counts with the region
        return self.price * self.costs.sync_s(float(self.shapes.graph.output_bytes[self.segments.cuts[i - 1]]))
