"""Choosing shards: which regions of a model devices compute together, by dynamic programming over cut tensors.

Whole ops cannot make a chain faster: one op is ready at a time. A region that several devices compute together takes
at least 1 / sum(1 / t_d) of their times t_d for it, and the syncs at its ends. The model falls into segments between
tensors through which all paths pass; for every run of segments there are a few ways to compute it, and the cheapest
sequence of ways is found exactly (SHARDING section 5).

Legend: N ops, D devices, K segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray
from hsdag.ir.graph.state import variable_of
from hsdag.ir.shards.regions import Region, Scheme, Shapes

LEAST_SHARE = 1e-4
"""Of the model's work: ops that do less are no reason to divide a region, and what reads nothing else runs anywhere."""

MOST_SEGMENTS = 8
"""That are divided as one region by rows: halos grow with every one."""

UNEVEN, MOST_MOVES = 1.05, 4
"""Bounds are moved at most so often, where the longest share takes more than so many times the mean."""

SCHEMES: tuple[Scheme, ...] = ("rows", "hidden", "heads", "channels", "columns")

Layout: TypeAlias = tuple[int, ...]
"""Of a cut tensor: (d,) on device d, () on every device, (axis, bounds...) divided along an axis."""

EVERYWHERE: Layout = ()


@dataclass(frozen=True, eq=False)
class ShardCosts:
    """Seconds of each op on each device alone, how many times as long it takes while the others work, and syncs.

    A sync starts a part, ``launch_s``, which writes and reads ``s_per_byte``. Times are NaN where a device lacks an op.
    """

    time_s: FloatArray  # [N, D]
    slowdown: FloatArray  # [D]
    launch_s: float
    s_per_byte: float

    def sync_s(self, size_bytes: float) -> float:
        """Seconds to hand so many bytes from part to part."""
        return self.launch_s + size_bytes * self.s_per_byte

    def of(self, devices: Sequence[int]) -> ShardCosts:
        """The costs of some of the devices."""
        chosen = list(devices)
        return replace(self, time_s=self.time_s[:, chosen], slowdown=self.slowdown[chosen])


@dataclass(frozen=True, eq=False)
class Sharding:
    """Regions that devices compute together, the device of every other op [N], and the seconds that were predicted.

    ``bound_s`` is what the same regions take without any sync.
    """

    regions: tuple[Region, ...]
    devices: tuple[int, ...]
    predicted_s: float
    bound_s: float

    def over(self, devices: Sequence[int]) -> Sharding:
        """The same with device k called ``devices[k]``."""
        regions = tuple(replace(r, shares={devices[d]: share for d, share in r.shares.items()}) for r in self.regions)
        return replace(self, regions=regions, devices=tuple(devices[d] for d in self.devices))


@dataclass(frozen=True)
class RegionFigures:
    """Seconds of a region on the fastest device alone, divided at best (the harmonic bound), as it is divided, and of
    the syncs at its ends, which do not all count where regions follow each other."""

    whole_s: float
    bound_s: float
    divided_s: float
    sync_s: float

    @property
    def pays(self) -> bool:
        """Whether dividing it by itself would gain anything."""
        return self.divided_s + self.sync_s < self.whole_s


@dataclass(frozen=True, eq=False)
class _Way:
    """A way to compute a run of segments, from the layout of what it reads to that of what it gives."""

    end: Layout
    regions: tuple[Region, ...]
    device: int | None  # that computes the rest; None where all do
    compute_s: float
    sync_s: float
    reads: Layout  # how it wants to find what it reads; a whole tensor is found on its device for nothing


@dataclass(frozen=True, eq=False)
class _Division:
    """A region with shares, seconds of each device [D] for it, and bytes of the syncs at its end and beginning."""

    region: Region
    each_s: FloatArray
    end_bytes: float
    read_bytes: float


class ShardChooser:
    """The ways to divide one model over devices, whose ``costs`` are known.

    ``shares`` are those of the devices, by default by their speed for what a region does, and balanced further as far
    as halos and grains ask for. Only ``schemes`` are used. ``pins`` are devices of ops that are not divided.
    """

    def __init__(
        self,
        shapes: Shapes,
        costs: ShardCosts,
        shares: Sequence[float] | None = None,
        schemes: Collection[Scheme] = SCHEMES,
        pins: Mapping[int, int] | None = None,
    ) -> None:
        self.shapes = shapes
        self.shares = shares
        self.pins = {**dict.fromkeys(_bound_to_variables(shapes.graph), 0), **(pins or {})}
        self.schemes = schemes
        self.costs = costs
        self.num_devices = costs.time_s.shape[1]
        graph = shapes.graph
        self._runs = np.array(shapes.runs)
        self._time_s = np.where(self._runs[:, None], np.where(np.isnan(costs.time_s), np.inf, costs.time_s), 0.0)
        self._work_s = np.where(self._runs, np.nan_to_num(costs.time_s).max(axis=1), 0.0)
        self._busy_s = self._time_s * costs.slowdown
        self._is_main = self._main_ops()
        self._cuts = self._cut_ops()
        bounds = [-1, *self._cuts]
        self._segments = [
            [v for v in range(first + 1, last + 1) if self._is_main[v]] for first, last in itertools.pairwise(bounds)
        ]
        self._sides = [v for v in range(graph.num_ops) if self._runs[v] and not self._is_main[v] and v not in self.pins]
        self._price = 1.0
        self._divisions: dict[tuple[object, ...], _Division | None] = {}

    def _main_ops(self) -> BoolArray:
        """[N] ops that do a share of the work worth dividing, or depend on one; all others are cheap to repeat."""
        graph, work = self.shapes.graph, self._work_s
        is_main: BoolArray = work > LEAST_SHARE * work.sum()
        is_main &= np.isin(graph.op_types, ["MatMul", "Convolution", "GroupConvolution", "Gather"]) & self._runs
        for v in graph.topological_order.tolist():
            if self._runs[v] and not is_main[v]:
                is_main[v] = is_main[graph.predecessors.of(v)].any()
        return is_main

    def _cut_ops(self) -> list[int]:
        """Ops through whose results every path of the main ops goes, in order, and the last main op."""
        graph, furthest, found = self.shapes.graph, -1, []
        main = np.flatnonzero(self._is_main)
        for v in main.tolist():
            readers = [u for u in graph.successors.of(v).tolist() if self._is_main[u]]
            if furthest <= v and readers:
                found.append(v)
            furthest = max([furthest, *readers])
        return [*found, *([int(main[-1])] if len(main) and int(main[-1]) not in found else [])]

    def figures(self, region: Region) -> RegionFigures:
        """What a region takes, on one device and divided."""
        each_s, alone_s = self._region_s(region), self._time_s[list(region.ops)].sum(axis=0)
        assert each_s is not None  # it was divided so before
        end_bytes = float(self.shapes.graph.output_bytes[region.ops[-1]])
        sync_s = self.costs.sync_s(end_bytes) + self.costs.sync_s(self._read_bytes(region))
        bound_s = 1.0 / float((1.0 / np.maximum(alone_s[list(region.shares)], 1e-12)).sum())
        return RegionFigures(float(alone_s.min()), bound_s, float(each_s.max()), sync_s)

    def best(self, price: float = 1.0) -> Sharding | None:
        """The cheapest sequence of ways; None where it divides nothing. Syncs take ``price`` times what they do."""
        self._price = price
        if not self._segments:
            return None
        cost: list[dict[Layout, tuple[float, Layout, int, _Way | None]]] = [{EVERYWHERE: (0.0, EVERYWHERE, 0, None)}]
        for j in range(1, len(self._segments) + 1):
            found: dict[Layout, tuple[float, Layout, int, _Way | None]] = {}
            for i in range(max(0, j - MOST_SEGMENTS), j):
                for way in self._ways(i, j):
                    for layout, (before_s, *_) in cost[i].items():
                        total_s = before_s + way.compute_s + way.sync_s + self._sync_s(i, layout, way.reads)
                        if total_s < found.get(way.end, (np.inf,))[0]:
                            found[way.end] = total_s, layout, i, way
            cost.append(found)
        count, ends = len(self._segments), cost[-1]
        joined = {layout: found[0] + self._sync_s(count, layout, EVERYWHERE) for layout, found in ends.items()}
        end = min(joined, key=joined.__getitem__)
        return self._followed_back(cost, end, joined[end])

    def _followed_back(
        self, cost: list[dict[Layout, tuple[float, Layout, int, _Way | None]]], end: Layout, total_s: float
    ) -> Sharding | None:
        j, layout, ways = len(cost) - 1, end, []
        while j > 0:
            _, before, i, way = cost[j][layout]
            assert way is not None  # only the beginning has none
            ways.append((i, j, way))
            j, layout = i, before
        if not any(way.regions for _, _, way in ways):
            return None
        regions: list[Region] = []
        devices = np.array([self.pins.get(v, 0) for v in range(self.shapes.graph.num_ops)])
        everywhere = dict.fromkeys(range(self.num_devices), (0, 1))
        repeated = list(self._sides)
        for i, j, way in reversed(ways):
            ops = [v for segment in self._segments[i:j] for v in segment]
            divided = {v for region in way.regions for v in region.ops}
            regions += way.regions
            rest = [v for v in ops if v not in divided]
            if way.device is None:
                repeated += rest
            else:
                devices[rest] = way.device
        if repeated:
            regions.append(Region("replicated", tuple(sorted(repeated)), (None,) * len(repeated), everywhere))
        bound_s = sum(way.compute_s for *_, way in ways)
        predicted_s = bound_s + (total_s - bound_s) / self._price
        return Sharding(tuple(regions), tuple(devices.tolist()), predicted_s, bound_s)

    def _ways(self, i: int, j: int) -> list[_Way]:
        """The ways to compute segments i up to j."""
        ops = [v for segment in self._segments[i:j] for v in segment]
        ways: list[_Way] = []
        if j == i + 1:
            total = self._time_s[ops].sum(axis=0)
            pinned = {self.pins[v] for v in ops if v in self.pins}
            allowed = [d for d in range(self.num_devices) if pinned <= {d}]
            ways += [_Way((d,), (), d, float(total[d]), 0.0, (d,)) for d in allowed]
            ways += self._inner(ops)
        ways += self._rows(i, ops, needs_all=j > i + 1)
        return ways

    def _inner(self, ops: Sequence[int]) -> list[_Way]:
        """The segment with its heavy ops divided, by partial sums or columns, and all others on every device."""
        heavy = sorted((v for v in ops if self._is_heavy(v)), reverse=True)
        chosen: list[_Division] = []
        taken: set[int] = set()
        for v in heavy:
            if v in taken:
                continue
            found = [
                each
                for scheme, axis in self._inner_schemes(v)
                if (each := self._divided(scheme, v, axis, ops[0], frozenset(taken))) is not None
            ]
            found = [each for each in found if self._gain(each) > 0]
            if found:
                best = max(found, key=self._gain)
                chosen.append(best)
                taken |= set(best.region.ops)
        if not chosen:
            return []
        if self.pins.keys() & set(ops):
            return []
        rest = self._busy_s[[v for v in ops if v not in taken]].sum(axis=0)
        compute_s = float(rest.max() + sum(each.each_s.max() for each in chosen))
        sync_s = sum(self._sync_of(each.end_bytes) for each in chosen)
        return [_Way(EVERYWHERE, tuple(each.region for each in chosen), None, compute_s, sync_s, EVERYWHERE)]

    def _gain(self, found: _Division) -> float:
        whole_s = self._time_s[list(found.region.ops)].sum(axis=0).min()
        return float(whole_s - found.each_s.max() - self._sync_of(found.end_bytes))

    def _sync_of(self, size_bytes: float) -> float:
        return self._price * self.costs.sync_s(size_bytes)

    def _is_heavy(self, v: int) -> bool:
        is_kernel = self.shapes.op(v).type in ("MatMul", "Convolution", "GroupConvolution")
        return is_kernel and bool(self._work_s[v] > LEAST_SHARE * self._work_s.sum())

    def _inner_schemes(self, v: int) -> list[tuple[Scheme, int | None]]:
        op = self.shapes.op(v)
        if op.type == "MatMul":
            return [("hidden", None), ("columns", op.rank - 1)]
        return [("channels", None), ("channels", 1)]

    def _divided(
        self,
        scheme: Scheme,
        last: int,
        axis: int | None,
        first: int,
        taken: frozenset[int],
    ) -> _Division | None:
        """The region that ends so, without the ops before ``first`` and those that are ``taken``, if it can be."""
        key = scheme, last, axis, first, taken
        if key not in self._divisions:
            self._divisions[key] = self._division(scheme, last, axis, set(range(first)) | taken)
        return self._divisions[key]

    def _division(self, scheme: Scheme, last: int, axis: int | None, stop: set[int]) -> _Division | None:
        region = self.shapes.region(scheme, last, axis, stop)
        if region is None or not self._is_closed(region):
            return None
        types = {self.shapes.op(v).type for v in region.ops}
        if scheme == "hidden" and types & {"Softmax", "ScaledDotProductAttention"}:
            region = replace(region, scheme="heads")
        if region.scheme not in self.schemes:
            return None
        grain = self.shapes.grain(region)
        if grain is None:
            return None
        if self.pins.keys() & set(region.ops):
            return None
        extent, shares = self.shapes.extent(region), self.shares
        if shares is None:
            speed = 1.0 / np.maximum(self._busy_s[list(region.ops)].sum(axis=0), 1e-12)
            shares = (speed / max(float(speed.sum()), 1e-12)).tolist()
        bounds = [0, *(round(extent * share / grain) * grain for share in np.cumsum(shares)[:-1]), extent]
        found = self._balanced(region, grain, bounds) if self.shares is None else self._with_bounds(region, bounds)
        if found is None or len(found[0].shares) < 2:
            return None
        region, each_s = found
        size = float(self.shapes.graph.output_bytes[last])
        least = min((b - a) / extent for a, b in region.shares.values())
        return _Division(region, each_s, size if axis is None else size * (1 - least), self._read_bytes(region))

    def _with_bounds(self, region: Region, bounds: Sequence[int]) -> tuple[Region, FloatArray] | None:
        """A region with the shares that bounds give, and what devices take for them; None where it has no such."""
        shares = {d: (a, b) for d, (a, b) in enumerate(itertools.pairwise(bounds)) if a < b}
        region = replace(region, shares=shares)
        each_s = self._region_s(region)
        return None if each_s is None else (region, each_s)

    def _balanced(self, region: Region, grain: int, bounds: Sequence[int]) -> tuple[Region, FloatArray] | None:
        """The same, with bounds moved by a grain as long as that shortens the longest share by more than a little."""
        found = self._with_bounds(region, bounds)
        for _ in range(MOST_MOVES):
            if found is None or found[1].max() < UNEVEN * found[1][list(found[0].shares)].mean():
                break
            slowest = int(found[1].argmax())
            moves = [(slowest, grain), (slowest + 1, -grain)]
            others = [
                [b + step * (k == at) for k, b in enumerate(bounds)] for at, step in moves if 0 < at < len(bounds) - 1
            ]
            made = [(self._with_bounds(region, each), each) for each in others]
            better = [(each, at) for each, at in made if each is not None and each[1].max() < found[1].max()]
            if not better:
                break
            found, bounds = min(better, key=lambda each: float(each[0][1].max()))
        return found

    def _region_s(self, region: Region) -> FloatArray | None:
        """[D] seconds of each device for its share, halos included; None where the region cannot be divided so."""
        found = np.zeros(self.num_devices)
        extent = self.shapes.extent(region)
        for d, (first, last) in region.shares.items():
            pieces = self.shapes.pieces(region, d)
            if pieces is None:
                return None
            for v, (span, _) in pieces.items():
                share = (last - first) / extent
                if span is not None:
                    share = (span.last - span.first) / self.shapes.op(v).outputs[0][span.axis]
                found[d] += share * self._busy_s[v, d]
        return found

    def _rows(self, i: int, ops: Sequence[int], *, needs_all: bool) -> list[_Way]:
        """The segments with what ends in their last op divided along an axis of its result."""
        last = ops[-1]
        op = self.shapes.op(last)
        ways = []
        for axis in range(op.rank):
            if op.outputs[0][axis] < self.num_devices:
                continue
            found = self._divided("rows", last, axis, ops[0], frozenset())
            if found is None:
                continue
            region, each_s = found.region, found.each_s
            rest = [v for v in ops if v not in set(region.ops)]
            if any(self._is_heavy(v) or v in self.pins for v in rest) or (needs_all and rest):
                continue
            compute_s = float((each_s + self._busy_s[rest].sum(axis=0)).max())
            bounds = tuple(b for _, b in region.shares.values())
            sync_s = self._sync_of(found.read_bytes) if i > 0 else 0.0
            ways.append(_Way((axis, *bounds), (region,), None, compute_s, sync_s, (axis, *self._entry(region, i))))
        return ways

    def _entry(self, region: Region, i: int) -> tuple[int, ...]:
        """Where devices change in what a region by rows reads, as the bounds of its own end (halos are extra)."""
        if i == 0:
            return ()
        size = self.shapes.op(self._cuts[i - 1]).outputs[0]
        axis = region.axes[-1]
        if axis is None or axis >= len(size):
            return ()
        extent = self.shapes.extent(region)
        return tuple(round(b * size[axis] / extent) for _, b in region.shares.values())

    def _read_bytes(self, region: Region) -> float:
        """Bytes that a device reads of what is made outside a region, its own share and halos, at most."""
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
        """Whether nothing outside a region reads anything but its end."""
        inside = set(region.ops)
        return all(u in inside for v in region.ops[:-1] for u in self.shapes.graph.successors.of(v).tolist())

    def _sync_s(self, i: int, found: Layout, wanted: Layout) -> float:
        """Seconds to bring what the first i segments give from one layout to another."""
        if i == 0 or found in (wanted, EVERYWHERE) or (len(found) == 1 and i == len(self._segments)):
            return 0.0
        size = float(self.shapes.graph.output_bytes[self._cuts[i - 1]])
        if len(found) > 1 and len(wanted) > 1 and found[0] == wanted[0]:
            return 0.0  # the same axis: the halo counts with the region
        return self._sync_of(size)


def _bound_to_variables(graph: ComputationGraph) -> list[int]:
    """Ops that have to be where a variable is, which is on one device."""
    if variable_of(graph) is None:
        return []
    labels = colocate(graph).sets.labels.tolist()
    bound = {labels[v] for v, variable in enumerate(graph.variables) if variable}
    return [v for v, label in enumerate(labels) if label in bound]


PRICES = (1.0, 0.5, 2.0)
"""Of syncs, as multiples of what they were measured to take: cheaper ones give smaller regions, dearer ones larger."""


def propose(
    shapes: Shapes, costs: ShardCosts, pins: Mapping[int, int] | None = None, prices: Sequence[float] = PRICES
) -> list[Sharding]:
    """Ways to divide a model, the most likely one first, that are predicted to be faster than the best device alone.

    All devices divide it, or the fastest two, three and so on.
    """
    whole_s = np.where(np.isnan(costs.time_s), np.inf, costs.time_s)[list(map(bool, shapes.runs))].sum(axis=0)
    fastest, pins = np.argsort(whole_s, kind="stable").tolist(), pins or {}
    found: list[Sharding] = []
    groups = [fastest[:count] for count in range(len(fastest), 1, -1) if set(pins.values()) <= set(fastest[:count])]
    choosers = [
        (ShardChooser(shapes, costs.of(group), pins={v: group.index(d) for v, d in pins.items()}), group)
        for group in groups
    ]
    for price in prices:
        ways = [way.over(group) for chooser, group in choosers if (way := chooser.best(price)) is not None]
        for way in sorted(ways, key=lambda each: each.predicted_s)[:1]:
            if way.regions not in [each.regions for each in found] and way.predicted_s < whole_s.min():
                found.append(way)
    return found
