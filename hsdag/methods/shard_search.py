"""Proposing shards: what dynamic programming finds at several prices of syncs, and a local search from the best."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from hsdag.ir.errors import PlacementError
from hsdag.ir.graph.paths import longest_before
from hsdag.ir.graph.state import computed_once, variable_of
from hsdag.ir.shards.regions import Region, Shapes
from hsdag.ir.shards.rules import Span, piece_of
from hsdag.methods.sharding import ShardChooser, ShardCosts, Sharding

T = TypeVar("T")

PRICES = (1.0, 0.5, 2.0)
"""Of syncs, as multiples of what they were measured to take: cheaper ones give smaller regions, dearer ones larger."""

NEAR_PRICES, MOST_TRIALS, NUM_PROPOSED = (1.0, 0.8, 1.25, 8.0), 16, 3
"""Prices around a known one, and one for few syncs; changes of the fastest way that are tried, and results at most."""


def propose(
    shapes: Shapes,
    costs: ShardCosts,
    pins: Mapping[int, int] | None = None,
    prices: Sequence[float] = PRICES,
    predict: Callable[[Sharding], float] = lambda way: way.predicted_s,
    trials: int = 0,
    *,
    is_over: Callable[[], bool] = lambda: False,
    least: int = 0,
) -> list[Sharding]:
    """Ways to divide a model that are faster than the best device alone, as ``predict`` has it, the fastest first.

    So many at ``least``, which may be no faster, so that what is not predicted to gain anything can be measured. Where
    time ``is_over``, what was found by then.

    All devices divide it, or the fastest two, three and so on; the fastest way, as it is or ``with_repeated`` ops, is
    ``refined`` in so many ``trials``.
    """
    whole_s = np.where(np.isnan(costs.time_s), np.inf, costs.time_s)[list(map(bool, shapes.runs))].sum(axis=0)
    fastest = np.argsort(whole_s, kind="stable").tolist()
    pins = pins or {}
    groups = [fastest[:count] for count in range(len(fastest), 1, -1) if set(pins.values()) <= set(fastest[:count])]
    choosers = [
        (group, ShardChooser(shapes, costs.of(group), pins={v: group.index(d) for v, d in pins.items()}))
        for group in groups
    ]
    found: list[Sharding] = []
    for price, has_home in itertools.product(prices, (False, True)):
        if found and is_over():
            break
        ways = [(chooser.best(price, has_home=has_home), group) for group, chooser in choosers]
        made = sorted((w.over(group) for w, group in ways if w is not None), key=lambda each: each.predicted_s)
        found += [replace(way, predicted_s=predict(way)) for way in made[:1] if way not in found]
    found.sort(key=lambda each: each.predicted_s)
    if variable_of(shapes.graph) is None and not is_over():  # ops have to be where the variable is that they read
        new = [way for way in (with_repeated(shapes, each, pins.keys()) for each in found[:1]) if way not in found]
        found = sorted(found + [replace(way, predicted_s=predict(way)) for way in new], key=lambda w: w.predicted_s)
        shared = partial(choosers[0][1].shared, names=fastest)
        found[:1] = [refined(shapes, each, predict, pins, trials, shared, is_over) for each in found[:1]]
    found = [each for each in found if np.isfinite(each.predicted_s)]  # others do not fit
    num = max(sum(each.predicted_s < whole_s.min() for each in found), least)
    return found[: min(num, NUM_PROPOSED)]


SPREAD, MOST_DRAWS = 0.08, 8
"""Standard deviation of bounds, as a share; most draws for each trial."""

KERNELS = ("Convolution", "GroupConvolution", "MatMul")
"""Op types that do most of the work; what alone reads one goes where it goes."""


def refined(
    shapes: Shapes,
    way: Sharding,
    predict: Callable[[Sharding], float],
    pinned: Container[int],
    trials: int,
    shared: Callable[[Region], Region | None] = lambda _: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Sharding:
    """The fastest of the ways to divide a model to which ``trials`` random changes lead, each kept if it is no slower.

    A bound moves, a region ends before a window that reads beyond a share, it goes on with what reads it, and is
    ``shared`` anew, or an op that is not divided has another device, unless it is ``pinned``. Ends where time
    ``is_over``.
    """
    changes = _Changes(shapes, pinned, shared, np.random.default_rng(0))
    seen = [way]
    moves = changes.bound, changes.ending, changes.going_on, changes.elsewhere
    for _ in range(MOST_DRAWS * trials):  # some change nothing, or lead to what was tried before
        if is_over():
            break
        with contextlib.suppress(PlacementError):  # of what cannot be divided so
            changed = moves[changes.rng.integers(len(moves))](way)
            if changed not in seen and len(seen) <= trials:
                seen.append(changed)
                if (taken_s := predict(changed)) <= way.predicted_s:
                    way = replace(changed, predicted_s=taken_s)
    return way


@dataclass(frozen=True, eq=False)
class _Changes:
    """Random changes of ways to divide a model. Raise PlacementError where there is nothing to change so."""

    shapes: Shapes
    pinned: Container[int]
    shared: Callable[[Region], Region | None]
    rng: np.random.Generator

    def bound(self, way: Sharding) -> Sharding:
        """A region, or all divided alike, with the bound where a device begins elsewhere, by a grain at least."""
        bounds = [(region, d) for region in _divided(way) for d, (first, _) in region.shares.items() if first > 0]
        region, device = self._one_of(bounds)
        step = self.rng.normal(0.0, SPREAD) * self.rng.random()
        grain = self.shapes.grain(region) or 1
        bound, last = region.shares[device]
        moved = bound + grain * int(np.copysign(np.ceil(abs(step) * self.shapes.extent(region) / grain), step))
        shares = {d: (first, moved if end == bound else end) for d, (first, end) in region.shares.items()}
        shares[device] = moved, last
        alike = [each for each in _divided(way) if (each.scheme, each.shares) == (region.scheme, region.shares)]
        chosen = alike if self.rng.random() > 0.5 else [region]
        return self._with(way, *(replace(each, shares=shares) for each in chosen))

    def ending(self, way: Sharding) -> Sharding:
        """A region in two: rows are handed on before a window reads them, in place of computed twice."""
        axes = [(region, *each) for region in _divided(way) for each in zip(region.ops, region.axes, strict=True)]
        ends = [(region, self.shapes.producer(v, 0)) for region, v, axis in axes if self._reads_beyond(v, axis)]
        region, end = self._one_of([(region, u) for region, u in ends if u in region.ops])
        before = {end}
        for v in reversed(region.ops):
            if v in before:
                before |= {self.shapes.producer(v, port) for port in range(len(self.shapes.op(v).inputs))}
        return self._with(way, self._only(region, before))

    def going_on(self, way: Sharding) -> Sharding:
        """A region with the one that reads it, or with an op and what alone reads that; perhaps along another axis."""
        regions, free = _divided(way), self._free(way)
        region = self._one_of(regions)
        inside = {v: each.ops for each in regions for v in each.ops}
        readers = {v for u in region.ops for v in self.shapes.graph.successors.of(u).tolist()}
        first = self._one_of(sorted((readers & {*free, *inside}).difference(region.ops)))
        read = inside[first] if first in inside else self._followed(first, free)
        axis = (self._one_of(regions) if self.rng.random() > 0.5 else region).axes[-1]
        outside = {*range(len(self.shapes.runs))}.difference(region.ops, read)
        is_one = axis is not None and axis < self.shapes.op(read[-1]).rank
        made = self.shapes.region("rows", read[-1], axis, outside) if is_one else None
        found = None if made is None else self.shared(made)
        if found is None:
            raise PlacementError("there is no such region")
        return self._with(way, found)

    def elsewhere(self, way: Sharding) -> Sharding:
        """An op that is not divided on another device, and perhaps what alone reads it."""
        free = self._free(way)
        devices = np.array(way.devices)
        v = self._one_of(free)
        moved = self._followed(v, free)
        devices[moved] = self._one_of(sorted({d for region in way.regions for d in region.shares} - {way.devices[v]}))
        return replace(self._with(way, ops=moved), devices=tuple(devices.tolist()))

    def _one_of(self, choices: Sequence[T]) -> T:
        if not choices:
            raise PlacementError("there is nothing to change")
        return choices[int(self.rng.integers(len(choices)))]

    def _free(self, way: Sharding) -> list[int]:
        divided = {v for region in _divided(way) for v in region.ops}
        return [v for v, runs in enumerate(self.shapes.runs) if runs and v not in divided and v not in self.pinned]

    def _followed(self, v: int, free: Container[int]) -> list[int]:
        """An op with what alone reads it, up to the next kernel and perhaps beyond."""
        found = [v]
        while len(readers := self.shapes.graph.successors.of(found[-1]).tolist()) == 1 and readers[0] in free:
            if self.shapes.graph.op_types[readers[0]] in KERNELS and self.rng.random() > 0.5:
                break
            found += readers
        return found

    def _reads_beyond(self, v: int, axis: int | None) -> bool:
        """Whether a row of a result is computed from several."""
        op = self.shapes.op(v)
        middle = 0 if axis is None else op.outputs[0][axis] // 2
        piece = None if axis is None else piece_of(op, Span(axis, middle, middle + 1))
        return piece is not None and any(need and need.last - need.first > 1 for need in piece.inputs[:1])

    def _with(self, way: Sharding, *made: Region, ops: Collection[int] = ()) -> Sharding:
        """A way with one more region, and no others of its ops, or without some ops in regions."""
        taken = {*ops}.union(*(region.ops for region in made))
        rest = [self._only(region, {*region.ops} - taken) for region in way.regions]
        regions = sorted((each for each in (*rest, *made) if each.ops), key=lambda each: each.ops[-1])
        return replace(way, regions=tuple(regions))

    def _only(self, region: Region, ops: Container[int]) -> Region:
        """A region without its other ops, with shares in proportion."""
        kept = [(v, axis) for v, axis in zip(region.ops, region.axes, strict=True) if v in ops]
        made = replace(region, ops=tuple(v for v, _ in kept), axes=tuple(axis for _, axis in kept))
        if not kept or region.scheme == "replicated":
            return made
        scale = self.shapes.extent(made) / self.shapes.extent(region)
        return replace(made, shares={d: (round(a * scale), round(b * scale)) for d, (a, b) in region.shares.items()})


def with_repeated(shapes: Shapes, way: Sharding, pinned: Set[int] = frozenset()) -> Sharding:
    """The same, but all devices compute what lies between divided ops, so as not to wait for one that does."""
    graph, regions = shapes.graph, _divided(way)
    order, hops, is_divided = graph.topological_order, np.zeros(len(graph.edge_src)), np.zeros(graph.num_ops)
    is_divided[[v for region in regions for v in region.ops]] = 1.0
    is_between = longest_before(order, graph.predecessors, is_divided, hops) > 0
    is_between &= longest_before(order[::-1], graph.successors, is_divided, hops) > 0
    repeated = {v for region in way.regions if region.scheme == "replicated" for v in region.ops}
    is_between &= (is_divided == 0) & ~computed_once(graph)
    repeated |= {v for v in np.flatnonzero(is_between).tolist() if shapes.runs[v]} - pinned
    devices = dict.fromkeys(sorted({d for region in regions for d in region.shares}), (0, 1))
    made = [Region("replicated", tuple(sorted(repeated)), (None,) * len(repeated), devices)] if repeated else []
    return replace(way, regions=(*regions, *made))


def _divided(way: Sharding) -> list[Region]:
    return [region for region in way.regions if region.scheme != "replicated"]
