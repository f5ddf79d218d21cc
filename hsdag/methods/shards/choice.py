"""Choice of the regions of a model that devices compute together, by dynamic programming over cut tensors.

Placing whole ops cannot speed up a chain, where one op is ready at a time. A region that several devices compute
together takes at least 1 / sum(1 / t_d), where t_d is the time of device d alone, plus the syncs at its ends. The model
falls into segments between tensors that all paths pass; for every run of segments there are a few ways to compute it,
and the cheapest sequence of ways is found exactly (docs/shards.md).

Legend: N ops, D devices, K segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np

from hsdag.ir.graph.colocation import colocate, repeated_ops
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.state import SHAPE_OF_TYPES, computed_once, variable_of
from hsdag.ir.shards.regions import Region, Scheme, Shapes
from hsdag.methods.shards.segments import Segments

MOST_SEGMENTS = 5
"""Largest number of segments divided as one region by rows; halos grow with each."""

MOST_ASSIGNMENTS = 256
"""Number of assignments of branches to devices up to which all are tried; branches are not spread if there are more."""

UNEVEN = 1.05
"""Ratio of the slowest device's seconds to the mean from which on the bounds of a region are moved."""

MOST_MOVES = 4
"""Largest number of moves of a region's bounds."""

SCHEMES: tuple[Scheme, ...] = ("rows", "hidden", "heads", "channels", "columns")
"""Schemes by which regions are divided."""

Layout: TypeAlias = tuple[int, ...]
"""Layout of a cut tensor: (d,) on device d, () on every device, (axis, bounds...) divided along an axis."""

EVERYWHERE: Layout = ()
"""Layout of a tensor that every device has as a whole."""


class _Reached(NamedTuple):
    """Cheapest way so far to have a cut tensor in one layout."""

    total_s: float
    before: Layout  # layout of the cut tensor that the last way starts from
    start: int  # index of that cut
    way: _Way | None  # None at the beginning


class _End(NamedTuple):
    """End of a region, and the ops to leave out of it: those before ``first``, and those ``taken``."""

    scheme: Scheme
    last: int  # op
    axis: int | None  # axis of the last op's result
    first: int
    taken: frozenset[int] = frozenset()


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
        """Whether dividing this region alone gains anything."""
        return self.divided_s + self.sync_s < self.whole_s


@dataclass(frozen=True, eq=False)
class _Way:
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

    shapes: Shapes
    costs: ShardCosts
    shares: Sequence[float] | None = None
    schemes: Collection[Scheme] = SCHEMES
    pins: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bound, repeated = _bound_to_variables(self.shapes.graph)
        self._pinned = frozenset(self.pins)
        once = np.flatnonzero(computed_once(self.shapes.graph)).tolist()
        self.pins = {**dict.fromkeys(once, 0), **{v: 0 for v in self._bound if self._keeps(v)}, **self.pins}
        self.num_devices = self.costs.time_s.shape[1]
        self.segments = Segments(self.shapes, self.costs.time_s, self.pins, repeated, can_be_equal=not self._bound)
        self._time_s = self.segments.time_s
        self._busy_s = self._time_s * self.costs.slowdown
        self._fixed_s = np.minimum(self.costs.fixed_s, self._time_s)
        self._home = int(self._time_s.sum(axis=0).argmin())
        self._homes: tuple[int | None, ...] = (None, self._home)
        self._sides = [v for v in self.segments.others if v not in self.pins and v not in self._bound]
        self._price = 1.0
        self._shared: dict[tuple[object, ...], tuple[Region, FloatArray, float] | None] = {}
        self._undivided = cache(self._found)

    def figures(self, region: Region) -> RegionFigures:
        """Return the predicted seconds of a region with shares, on one device and divided."""
        each_s, alone_s = self._region_s(region), self._time_s[list(region.ops)].sum(axis=0)
        assert each_s is not None  # its shares come from a way that was found possible
        end_bytes = float(self.shapes.graph.output_bytes[region.ops[-1]])
        sync_s = self.costs.sync_s(end_bytes) + self.costs.sync_s(self._read_bytes(region))
        bound_s = 1.0 / float((1.0 / np.maximum(alone_s[list(region.shares)], 1e-12)).sum())
        return RegionFigures(float(alone_s.min()), bound_s, float(each_s.max()), sync_s)

    def shared(self, region: Region, names: Sequence[int]) -> Region | None:
        """Give a region the shares with which all devices end together; None if it cannot be divided.

        Device d is called ``names[d]`` in the result.
        """
        grain = self.shapes.grain(region)
        made = grain and self._with_shares(region, grain, np.zeros(self.num_devices))
        return replace(region, shares={names[d]: each for d, each in made[0].shares.items()}) if made else None

    def best(self, price: float = 1.0, *, has_home: bool = True) -> Sharding | None:
        """Return the cheapest way to divide the model; None if that divides nothing.

        Args:
            price: Factor of the seconds of syncs, to prefer larger or smaller regions.
            has_home: Whether the ops of a segment outside its divided regions may run on the fastest device alone, and
                not only on every device.
        """
        self._price = price
        self._homes = (None, self._home)[: 1 + has_home]
        if not self.segments.main:
            return None
        cost = [{EVERYWHERE: _Reached(0.0, EVERYWHERE, 0, None)}]
        solved: dict[tuple[object, ...], tuple[int, list[_Way]]] = {}
        for j in range(1, len(self.segments.main) + 1):
            found: dict[Layout, _Reached] = {}
            for i in range(max(0, j - MOST_SEGMENTS), j):
                if (key := (i == 0, *self.segments.kinds[i:j])) not in solved:
                    solved[key] = i, self._ways(i, j)
                for way in solved[key][1]:
                    for layout, before in cost[i].items():
                        total_s = before.total_s + way.compute_s + way.sync_s + self._sync_s(i, layout, way.reads)
                        if total_s < (found[way.end].total_s if way.end in found else np.inf):
                            found[way.end] = _Reached(total_s, layout, i, self._moved(way, solved[key][0], i, j))
            cost.append(found)
        count = len(self.segments.main)
        joined = {layout: each.total_s + self._sync_s(count, layout, EVERYWHERE) for layout, each in cost[-1].items()}
        if not joined:  # pins separate ops that every way keeps together
            return None
        end = min(joined, key=joined.__getitem__)
        return self._followed_back(cost, end, joined[end])

    def _moved(self, way: _Way, first: int, i: int, j: int) -> _Way:
        """Translate a way to compute segments from ``first`` on to the equal segments i up to j."""
        if first == i:
            return way
        pairs = zip(self.segments.members[first : first + j - i], self.segments.members[i:j], strict=True)
        moved = {v: u for before, now in pairs for v, u in zip(before, now, strict=True)}
        regions = tuple(replace(r, ops=tuple(moved[v] for v in r.ops)) for r in way.regions)
        return replace(way, regions=regions, placed={moved[v]: d for v, d in way.placed.items()})

    def _followed_back(self, cost: list[dict[Layout, _Reached]], end: Layout, total_s: float) -> Sharding | None:
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
        everywhere = dict.fromkeys(range(self.num_devices), (0, 1))
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
        light_s = np.array([each_s for v, each_s in enumerate(self._time_s) if not self.segments.is_heavy(v)])
        order = light_s.sum(axis=0).argsort(kind="stable").tolist()  # the first device adds partial sums
        regions = [replace(r, shares={d: r.shares[d] for d in order if d in r.shares}) for r in regions]
        if repeated:
            regions.append(Region("replicated", tuple(sorted(repeated)), (None,) * len(repeated), everywhere))
        bound_s = sum(way.compute_s for *_, way in ways)
        predicted_s = bound_s + (total_s - bound_s) / self._price
        return Sharding(tuple(regions), tuple(devices.tolist()), predicted_s, bound_s)

    def _ways(self, i: int, j: int) -> list[_Way]:
        """Return the ways to compute segments i up to j."""
        ops = [v for segment in self.segments.main[i:j] for v in segment]
        ways: list[_Way] = []
        if j == i + 1:
            total = self._time_s[ops].sum(axis=0)
            pinned = {self.pins[v] for v in ops if v in self.pins}
            allowed = [d for d in range(self.num_devices) if pinned <= {d}]
            ways += [_Way((d,), (), d, float(total[d]), 0.0, (d,)) for d in allowed]
            ways += self._branches(ops) if self.shares is None and set(self.schemes) == set(SCHEMES) else []
        if j == i + 1 or self.shapes.op(ops[-1]).type == "MatMul":
            ways += [way for home in self._homes for way in self._inner(ops, home, needs_all=j > i + 1)]
        return ways + self._rows(i, ops, needs_all=j > i + 1)

    def _inner(self, ops: Sequence[int], home: int | None, *, needs_all: bool) -> list[_Way]:
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
            made = [self._divided(_End(scheme, v, axis, ops[0], frozenset(taken)), home) for scheme, axis in schemes]
            found = [each for each in made if each is not None and self._gain(each, home) > 0]
            if found:
                chosen.append(max(found, key=lambda each: self._gain(each, home)))
                taken |= set(chosen[-1].region.ops)
        rest = [v for v in ops if v not in taken]
        if self.pins.keys() & set(rest) or (needs_all and rest) or (home is not None and not chosen):
            return []
        regions = tuple(each.region for each in chosen)
        compute_s = float(sum(each.each_s.max() for each in chosen))
        if home is None:
            rest_s, sync_s = float(self._busy_s[rest].sum(axis=0).max()), sum(each.sync_s[0] for each in chosen)
            return [_Way(EVERYWHERE, regions, None, compute_s + rest_s, sync_s, EVERYWHERE)]
        rest_s, sync_s = float(self._time_s[rest, home].sum()), sum(each.span_s for each in chosen) - compute_s
        return [_Way((home,), regions, home, compute_s + rest_s, sync_s, (home,))]

    def _branches(self, ops: Sequence[int]) -> list[_Way]:
        """Return the way that puts each branch of the segment on one device, if that uses several devices.

        Branches share no ops and no inputs other than that of the segment.
        """
        branches: list[set[int]] = []
        for v in ops[:-1]:
            read = set(self.shapes.graph.predecessors.of(v).tolist())
            joined = {v}.union(*(branch for branch in branches if branch & read))
            branches = [*(branch for branch in branches if not branch & read), joined]
        if len(branches) < 2 or self.num_devices ** len(branches) > MOST_ASSIGNMENTS or self.pins.keys() & set(ops):
            return []
        each_s = np.array([self._busy_s[list(branch)].sum(axis=0) for branch in branches])
        ends = set(self.shapes.graph.predecessors.of(ops[-1]).tolist())
        each_bytes = np.array([self.shapes.graph.output_bytes[list(branch & ends)].sum() for branch in branches])
        device = np.array(list(np.ndindex(*[self.num_devices] * len(branches))))
        has = device[:, :, None] == np.arange(self.num_devices)
        takes_s = (has * each_s).sum(axis=1).max(axis=1)
        sync_s = self._price * (
            self.costs.launch_s + self.costs.s_per_byte * (~has * each_bytes[:, None]).sum(axis=1).max(axis=1)
        )
        best = int((takes_s + sync_s).argmin())
        if len(set(device[best].tolist())) < 2:
            return []
        placed = {v: d for branch, d in zip(branches, device[best].tolist(), strict=True) for v in branch}
        compute_s = float(takes_s[best] + self._busy_s[ops[-1]].max())
        return [_Way(EVERYWHERE, (), None, compute_s, float(sync_s[best]), EVERYWHERE, placed)]

    def _gain(self, found: _Division, home: int | None) -> float:
        whole_s = self._time_s[list(found.region.ops)].sum(axis=0).min()
        return float(whole_s - found.span_s - (found.sync_s[0] if home is None else 0.0))

    def _divided(self, key: _End, home: int | None = None) -> _Division | None:
        """Return the region with this end and its seconds; None if there is none that can be divided.

        If its input and result are on a ``home`` device, the others start later and must end earlier.
        """
        wait_s = np.zeros(self.num_devices)
        if home is not None and (found := self._divided(key)) is not None:
            wait_s += sum(found.sync_s)
            wait_s[home] = 0.0
        waiting = *key, wait_s.tobytes()
        if waiting not in self._shared:
            undivided = self._undivided(*key)
            self._shared[waiting] = undivided and self._with_shares(*undivided, wait_s)
        if (made := self._shared[waiting]) is None:
            return None
        region, ends_s, read_bytes = made
        size = float(self.shapes.graph.output_bytes[key.last])
        shares = [(b - a) / self.shapes.extent(region) for a, b in region.shares.values()]
        written, read = (1.0, len(shares)) if key.axis is None else (max(shares), 1.0)  # own parts are read too
        end_s = self._price * self.costs.sync_s(size * (written + read) / 2)
        read_s = self._price * self.costs.sync_s(read_bytes) if read_bytes else 0.0
        return _Division(region, np.maximum(ends_s - wait_s, 0.0), float(ends_s.max()), (end_s, read_s))

    def _with_shares(self, region: Region, grain: int, wait_s: FloatArray) -> tuple[Region, FloatArray, float] | None:
        """Give a region its shares; None if fewer than two devices get one.

        Args:
            grain: Multiple to which bounds between shares are rounded.
            wait_s: Seconds that each device waits before and after its share [D].

        Returns the region, the seconds at which devices end [D], and the most bytes that one of them reads.
        """
        extent = self.shapes.extent(region)
        if (shares := self.shares) is None:
            whole_s, fixed_s = (each[list(region.ops)].sum(axis=0) for each in (self._busy_s, self._fixed_s))
            shares = even_shares(whole_s - fixed_s, wait_s + fixed_s).tolist()
        bounds = [0, *(round(extent * share / grain) * grain for share in np.cumsum(shares)[:-1]), extent]
        made = self._balanced(region, grain, bounds, wait_s)
        if made is None or len(made[0].shares) < 2:
            return None
        return *made, self._read_bytes(made[0])

    def _found(
        self, scheme: Scheme, last: int, axis: int | None, first: int, taken: frozenset[int]
    ) -> tuple[Region, int] | None:
        """Return the region with this end, without shares, and the grain of its bounds; None if there is none."""
        region = self.shapes.region(scheme, last, axis, (set(range(first)) - self._bound.keys()) | taken)
        if region is None or not self._is_closed(region):
            return None
        types = {self.shapes.op(v).type for v in region.ops}
        if scheme == "hidden" and types & {"Softmax", "ScaledDotProductAttention"}:
            region = replace(region, scheme="heads")
        if region.scheme not in self.schemes or self._pinned & set(region.ops):
            return None
        grain = self.shapes.grain(region)
        return None if grain is None else (region, grain)

    def _with_bounds(
        self, region: Region, bounds: Sequence[int], wait_s: FloatArray
    ) -> tuple[Region, FloatArray] | None:
        """Give a region the shares between ``bounds`` and return it with the seconds at which devices end [D].

        None if the region cannot be divided at these bounds.
        """
        region = replace(region, shares={d: (a, b) for d, (a, b) in enumerate(itertools.pairwise(bounds)) if a < b})
        each_s = self._region_s(region)
        return None if each_s is None else (region, np.where(each_s > 0, each_s + wait_s, 0.0))

    def _balanced(
        self, region: Region, grain: int, bounds: Sequence[int], wait_s: FloatArray
    ) -> tuple[Region, FloatArray] | None:
        """Give a region shares as ``_with_bounds`` does, then move bounds by a grain while that ends it earlier.

        Bounds stay if the user gave shares.
        """
        found = self._with_bounds(region, bounds, wait_s)
        for _ in range(0 if self.shares else MOST_MOVES):
            if found is None:
                break
            ends_s = found[1]
            if ends_s.max() < UNEVEN * ends_s[list(found[0].shares)].mean():
                break
            slowest = int(ends_s.argmax())
            steps = [(at, step) for at, step in ((slowest, grain), (slowest + 1, -grain)) if 0 < at < len(bounds) - 1]
            others = [[b + step * (k == at) for k, b in enumerate(bounds)] for at, step in steps]
            made = [(each, at) for at in others if (each := self._with_bounds(region, at, wait_s)) is not None]
            best = min(made, key=lambda each: float(each[0][1].max()), default=None)
            if best is None or best[0][1].max() >= ends_s.max():
                break
            found, bounds = best
        return found

    def _region_s(self, region: Region) -> FloatArray | None:
        """Return the seconds of each device for its share with halos [D]; None if the shares are impossible."""
        found = np.zeros(self.num_devices)
        for d, (first, last) in region.shares.items():
            pieces = self.shapes.pieces(region, d)
            share = (last - first) / self.shapes.extent(region)
            if pieces is None:
                return None
            ops = list(pieces)
            fixed_s = self._fixed_s[ops, d]
            work = np.array([self.shapes.work_of(v, *each, share) for v, each in pieces.items()])
            found[d] = fixed_s.sum() + work @ (self._busy_s[ops, d] - fixed_s)
        return found

    def _rows(self, i: int, ops: Sequence[int], *, needs_all: bool) -> list[_Way]:
        """Return the ways that divide the region that ends in the last op along an axis of its result."""
        last = ops[-1]
        op = self.shapes.op(last)
        ways = []
        for axis in range(op.rank):
            if op.outputs[0][axis] < self.num_devices:
                continue
            key = _End("rows", last, axis, ops[0])
            undivided = self._undivided(*key)
            inside = frozenset(undivided[0].ops if undivided else ())
            rest = [v for v in ops if v not in inside]
            if not inside or any(self.segments.is_heavy(v) or v in self.pins for v in rest) or (needs_all and rest):
                continue
            if (found := self._divided(key)) is None:
                continue
            layout = axis, *(b for _, b in found.region.shares.values())
            compute_s = float((found.each_s + self._busy_s[rest].sum(axis=0)).max())
            ways.append(_Way(layout, (found.region,), None, compute_s, found.sync_s[1] if i > 0 else 0.0, layout))
        return ways

    def _read_bytes(self, region: Region) -> float:
        """Return the most bytes that one device reads from outside a region for its share and halos."""
        found = [0.0]
        for d in region.shares:
            pieces = self.shapes.pieces(region, d) or {}
            reads: dict[int, float] = {}
            for v, (_, piece) in pieces.items():
                for port, need in enumerate(piece.inputs):
                    u = self.shapes.producer(v, port)
                    if u >= 0 and u not in pieces and self.shapes.runs[u]:
                        length = 1 if need is None else self.shapes.op(u).outputs[0][need.axis]
                        part = 1.0 if need is None else (need.last - need.first) / length
                        reads[u] = max(reads.get(u, 0.0), part * float(self.shapes.graph.output_bytes[u]))
            found.append(sum(reads.values()))
        return max(found)

    def _is_closed(self, region: Region) -> bool:
        """Return whether ops outside a region read only its last result, and its variables are whole inside it.

        Ops outside may read shapes, and write the variables.
        """
        graph = self.shapes.graph
        inside = set(region.ops)
        kept = {graph.variables[v] for v in region.ops} - {""}
        outside = [u for v in region.ops[:-1] for u in graph.successors.of(v).tolist() if u not in inside]
        if any(graph.variables[u] not in kept and graph.op_types[u] not in SHAPE_OF_TYPES for u in outside):
            return False
        written = {graph.variables[u] for u in outside} - {""}
        bound = {v for u in inside for v in self._bound.get(u, ())}
        return kept == written and all(v in inside or not self._keeps(v) for v in bound)

    def _keeps(self, v: int) -> bool:
        """Return whether an op reads a variable, or is the attention or product that uses it."""
        return self.shapes.runs[v] and self.shapes.op(v).type in ("ReadValue", "ScaledDotProductAttention", "MatMul")

    def _sync_s(self, i: int, found: Layout, wanted: Layout) -> float:
        """Return the seconds to bring the result of the first i segments from one layout to another."""
        if i == 0 or found in (wanted, EVERYWHERE) or (len(found) == 1 and i == len(self.segments.main)):
            return 0.0
        if len(found) > 1 and len(wanted) > 1 and found[0] == wanted[0]:
            return 0.0  # the same axis: the halo counts with the region
        return self._price * self.costs.sync_s(float(self.shapes.graph.output_bytes[self.segments.cuts[i - 1]]))


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


def _bound_to_variables(graph: ComputationGraph) -> tuple[dict[int, IntArray], BoolArray]:
    """Return the ops bound to a variable's device, each with all ops that are bound together, and which ops repeat [N].

    Repeated ops are computed by every device.
    """
    if variable_of(graph) is None:
        return {}, np.zeros(graph.num_ops, dtype=np.bool_)
    found = colocate(graph)
    labels, sets = found.sets.labels.tolist(), found.sets.members
    bound = {labels[v] for v, variable in enumerate(graph.variables) if variable}
    members = {v: sets.of(label) for v, label in enumerate(labels) if label in bound and not found.floating[v]}
    return members, repeated_ops(graph)
