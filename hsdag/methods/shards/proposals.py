"""Proposals of ways to divide a model, by dynamic programming at several prices of syncs and by local search."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TypeVar

import numpy as np

from hsdag.base.errors import PlacementError
from hsdag.ir.graph.paths import longest_before
from hsdag.ir.graph.state import computed_once, variable_of
from hsdag.ir.shards.regions import OpShapes, Region
from hsdag.ir.shards.rules import Span, piece_of
from hsdag.methods.shards.choice import ShardChooser, Sharding
from hsdag.methods.shards.division import ShardCosts
from hsdag.methods.shards.segments import KERNELS

T = TypeVar("T")

PRICES = (1.0, 0.5, 2.0)
"""Prices of syncs, as multiples of their measured seconds: lower ones give smaller regions, higher ones larger."""

NEAR_PRICES = (1.0, 0.8, 1.25, 8.0)
"""Multiples of a fitted price of syncs to try; the last one leads to few syncs."""

MOST_TRIALS = 16
"""Number of random changes of the fastest sharding to try after some were measured."""

NUM_PROPOSED = 3
"""Largest number of proposals."""

PREDICTED_S = attrgetter("predicted_s")
"""Key that sorts shardings by their predicted seconds."""


def propose(
    shapes: OpShapes,
    costs: ShardCosts,
    pins: Mapping[int, int] | None = None,
    prices: Sequence[float] = PRICES,
    predict: Callable[[Sharding], float] = lambda way: way.predicted_s,
    trials: int = 0,
    *,
    is_over: Callable[[], bool] = lambda: False,
    least: int = 0,
) -> list[Sharding]:
    """Return ways to divide a model that are predicted to beat the best single device, the fastest first.

    They use all devices, or only the fastest two, three and so on. The fastest, perhaps ``with_repeated`` ops, is
    ``improved_division``.

    Args:
        pins: Devices of ops that are not divided.
        prices: Factors of the seconds of syncs, each of which may lead to other regions.
        predict: Predicts the seconds of an inference.
        trials: Number of random changes to try.
        is_over: Returns True to end with what was found.
        least: Least number to return, even if they are no faster, so that they can be measured.
    """
    whole_s = np.where(np.isnan(costs.time_s), np.inf, costs.time_s)[list(map(bool, shapes.runs))].sum(axis=0)
    fastest = np.argsort(whole_s, kind="stable").tolist()
    pins = pins or {}
    groups = [fastest[:count] for count in range(len(fastest), 1, -1) if set(pins.values()) <= set(fastest[:count])]
    choosers = [
        (group, ShardChooser(shapes, costs.of(group), pins={v: group.index(d) for v, d in pins.items()}))
        for group in groups
    ]
    ways: list[Sharding] = []
    for price, has_home in itertools.product(prices, (False, True)):
        if ways and is_over():
            break
        best = [(chooser.best(price, has_home=has_home), group) for group, chooser in choosers]
        by_group = sorted((way.over(group) for way, group in best if way is not None), key=PREDICTED_S)
        ways += [replace(way, predicted_s=predict(way)) for way in by_group[:1] if way not in ways]
    ways.sort(key=PREDICTED_S)
    if variable_of(shapes.graph) is None and not is_over():  # ops have to be on the device of a variable that they read
        new = [way for way in (with_repeated(shapes, first, pins.keys()) for first in ways[:1]) if way not in ways]
        ways = sorted(ways + [replace(way, predicted_s=predict(way)) for way in new], key=PREDICTED_S)
        shared = partial(choosers[0][1].divider.shared, names=fastest)
        ways[:1] = [improved_division(shapes, first, predict, pins, trials, shared, is_over) for first in ways[:1]]
    ways = [way for way in ways if np.isfinite(way.predicted_s)]  # infinite ones do not fit into memory
    num = max(sum(way.predicted_s < whole_s.min() for way in ways), least)
    return ways[: min(num, NUM_PROPOSED)]


SPREAD = 0.08
"""Standard deviation of a moved bound, as a share of the region's extent."""

MOST_DRAWS = 8
"""Largest number of random changes drawn for each trial; many change nothing or were tried before."""


def improved_division(
    shapes: OpShapes,
    way: Sharding,
    predict: Callable[[Sharding], float],
    pinned: Container[int],
    trials: int,
    shared: Callable[[Region], Region | None] = lambda _: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Sharding:
    """Improve a way to divide a model by random changes, each kept if it is predicted to be no slower.

    A change moves a bound between shares, ends a region before a window that reads beyond a share, extends a region by
    ops that read it, or moves an undivided op to another device.

    Args:
        predict: Predicts the seconds of an inference.
        pinned: Ops that stay where they are.
        trials: Number of changes to try.
        shared: Gives an extended region new shares; None if it cannot be divided.
        is_over: Returns True to end early.
    """
    changes = _Changes(shapes, pinned, shared, np.random.default_rng(0))
    seen = [way]
    moves = changes.bound, changes.ending, changes.going_on, changes.elsewhere
    for _ in range(MOST_DRAWS * trials):  # some change nothing, or lead to what was tried before
        if is_over():
            break
        with contextlib.suppress(PlacementError):  # the change is impossible
            changed = moves[changes.rng.integers(len(moves))](way)
            if changed not in seen and len(seen) <= trials:
                seen.append(changed)
                if (taken_s := predict(changed)) <= way.predicted_s:
                    way = replace(changed, predicted_s=taken_s)
    return way


@dataclass(frozen=True, eq=False)
class _Changes:
    """Random changes of ways to divide a model; each raises PlacementError if it is impossible."""

    shapes: OpShapes
    pinned: Container[int]
    shared: Callable[[Region], Region | None]
    rng: np.random.Generator

    def bound(self, way: Sharding) -> Sharding:
        """Move a bound between two shares by at least a grain, in one region or in all with the same shares."""
        bounds = [(region, d) for region in _divided(way) for d, (first, _) in region.shares.items() if first > 0]
        region, device = self._one_of(bounds)
        step = self.rng.normal(0.0, SPREAD) * self.rng.random()
        grain = self.shapes.grain(region) or 1
        bound, last = region.shares[device]
        moved = bound + grain * int(np.copysign(np.ceil(abs(step) * self.shapes.extent(region) / grain), step))
        shares = {d: (first, moved if end == bound else end) for d, (first, end) in region.shares.items()}
        shares[device] = moved, last
        alike = [r for r in _divided(way) if (r.scheme, r.shares) == (region.scheme, region.shares)]
        chosen = alike if self.rng.random() > 0.5 else [region]
        return self._with(way, *(replace(r, shares=shares) for r in chosen))

    def ending(self, way: Sharding) -> Sharding:
        """End a region before an op that reads a window of rows: rows are exchanged rather than computed twice."""
        beyond = [
            (r, v) for r in _divided(way) for v, axis in zip(r.ops, r.axes, strict=True) if self._reads_beyond(v, axis)
        ]
        ends = [(r, self.shapes.producer(v, 0)) for r, v in beyond]
        region, end = self._one_of([(r, u) for r, u in ends if u in r.ops])
        before = {end}
        for v in reversed(region.ops):
            if v in before:
                before |= {self.shapes.producer(v, port) for port in range(len(self.shapes.op(v).inputs))}
        return self._with(way, self._only(region, before))

    def going_on(self, way: Sharding) -> Sharding:
        """Extend a region by one that reads it, or by an op with its only readers, perhaps along another axis."""
        regions, free = _divided(way), self._free(way)
        region = self._one_of(regions)
        inside = {v: r.ops for r in regions for v in r.ops}
        readers = {v for u in region.ops for v in self.shapes.graph.successors.of(u).tolist()}
        first = self._one_of(sorted((readers & {*free, *inside}).difference(region.ops)))
        read = inside[first] if first in inside else self._followed(first, free)
        axis = (self._one_of(regions) if self.rng.random() > 0.5 else region).axes[-1]
        outside = {*range(len(self.shapes.runs))}.difference(region.ops, read)
        is_one = axis is not None and axis < self.shapes.op(read[-1]).rank
        made = self.shapes.region("rows", read[-1], axis, outside) if is_one else None
        if made is None or (extended := self.shared(made)) is None:
            raise PlacementError("there is no such region")
        return self._with(way, extended)

    def elsewhere(self, way: Sharding) -> Sharding:
        """Move an undivided op to another device, with ops that only read it."""
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
        """Return an op and the chain of its only readers, up to the next kernel or, at random, beyond."""
        chain = [v]
        while len(readers := self.shapes.graph.successors.of(chain[-1]).tolist()) == 1 and readers[0] in free:
            if self.shapes.graph.op_types[readers[0]] in KERNELS and self.rng.random() > 0.5:
                break
            chain += readers
        return chain

    def _reads_beyond(self, v: int, axis: int | None) -> bool:
        """Return whether one row of the op's result needs several rows of its input."""
        op = self.shapes.op(v)
        middle = 0 if axis is None else op.outputs[0][axis] // 2
        piece = None if axis is None else piece_of(op, Span(axis, middle, middle + 1))
        return piece is not None and any(need and need.last - need.first > 1 for need in piece.inputs[:1])

    def _with(self, way: Sharding, *made: Region, ops: Collection[int] = ()) -> Sharding:
        """Add regions to a way, and take their ops, and ``ops``, out of all other regions."""
        taken = {*ops}.union(*(region.ops for region in made))
        rest = [self._only(region, {*region.ops} - taken) for region in way.regions]
        regions = sorted((region for region in (*rest, *made) if region.ops), key=lambda region: region.ops[-1])
        return replace(way, regions=tuple(regions))

    def _only(self, region: Region, ops: Container[int]) -> Region:
        """Return a region with only these of its ops, and shares in proportion."""
        kept = [(v, axis) for v, axis in zip(region.ops, region.axes, strict=True) if v in ops]
        made = replace(region, ops=tuple(v for v, _ in kept), axes=tuple(axis for _, axis in kept))
        if not kept or region.scheme == "replicated":
            return made
        scale = self.shapes.extent(made) / self.shapes.extent(region)
        return replace(made, shares={d: (round(a * scale), round(b * scale)) for d, (a, b) in region.shares.items()})


def with_repeated(shapes: OpShapes, way: Sharding, pinned: Set[int] = frozenset()) -> Sharding:
    """Have all devices compute the ops between divided ones, so that none waits for the device that has them."""
    graph, regions = shapes.graph, _divided(way)
    order, is_divided = graph.topological_order, np.zeros(graph.num_ops)
    is_divided[[v for region in regions for v in region.ops]] = 1.0
    is_between = longest_before(order, graph.predecessors, is_divided) > 0
    is_between &= longest_before(order[::-1], graph.successors, is_divided) > 0
    repeated = {v for region in way.regions if region.scheme == "replicated" for v in region.ops}
    is_between &= (is_divided == 0) & ~computed_once(graph)
    repeated |= {v for v in np.flatnonzero(is_between).tolist() if shapes.runs[v]} - pinned
    devices = dict.fromkeys(sorted({d for region in regions for d in region.shares}), (0, 1))
    made = [Region("replicated", tuple(sorted(repeated)), (None,) * len(repeated), devices)] if repeated else []
    return replace(way, regions=(*regions, *made))


def _divided(way: Sharding) -> list[Region]:
    return [region for region in way.regions if region.scheme != "replicated"]
