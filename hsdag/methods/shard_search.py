"""Proposing shards: what dynamic programming finds at several prices of syncs, and a local search from the best."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hsdag.ir.errors import PlacementError
from hsdag.ir.graph.state import variable_of
from hsdag.ir.shards.regions import Region, Shapes
from hsdag.methods.sharding import ShardChooser, ShardCosts, Sharding

PRICES = (1.0, 0.5, 2.0)
"""Of syncs, as multiples of what they were measured to take: cheaper ones give smaller regions, dearer ones larger."""

NEAR_PRICES, MOST_TRIALS, NUM_PROPOSED = (1.0, 0.8, 1.25, 8.0), 4, 3
"""Prices around a known one, and one for few syncs; changes of the fastest way that are tried, and results at most."""


def propose(
    shapes: Shapes,
    costs: ShardCosts,
    pins: Mapping[int, int] | None = None,
    prices: Sequence[float] = PRICES,
    judge: Callable[[Sharding], float] = lambda way: way.predicted_s,
    trials: int = 0,
) -> list[Sharding]:
    """Ways to divide a model that ``judge`` predicts to be faster than the best device alone, the fastest first.

    All devices divide it, or the fastest two, three and so on; the fastest way is ``refined`` in so many ``trials``.
    """
    whole_s = np.where(np.isnan(costs.time_s), np.inf, costs.time_s)[list(map(bool, shapes.runs))].sum(axis=0)
    fastest, pins = np.argsort(whole_s, kind="stable").tolist(), pins or {}
    groups = [fastest[:count] for count in range(len(fastest), 1, -1) if set(pins.values()) <= set(fastest[:count])]
    choosers = [
        (group, ShardChooser(shapes, costs.of(group), pins={v: group.index(d) for v, d in pins.items()}))
        for group in groups
    ]
    found: list[Sharding] = []
    for price in prices:
        ways = [(chooser.best(price), group) for group, chooser in choosers]
        made = sorted((w.over(group) for w, group in ways if w is not None), key=lambda each: each.predicted_s)
        found += [replace(way, predicted_s=judge(way)) for way in made[:1] if way not in found]
    found.sort(key=lambda each: each.predicted_s)
    if variable_of(shapes.graph) is None:  # ops have to be where the variable is that they read
        found[:1] = [refined(shapes, each, judge, pins, trials) for each in found[:1]]
    return [each for each in found if each.predicted_s < whole_s.min()][:NUM_PROPOSED]


WINDOWS = ("AvgPool", "Convolution", "GroupConvolution", "MaxPool")
"""Op types that may read rows beyond their share."""

SPREAD, GOES_ON = 0.08, 0.75
"""By what share of the extent a bound moves (standard deviation), and how likely what follows an op moves with it."""


def refined(
    shapes: Shapes, way: Sharding, judge: Callable[[Sharding], float], pinned: Container[int], trials: int
) -> Sharding:
    """The fastest of the ways to divide a model to which ``trials`` random changes lead, each kept where it is faster.

    A bound moves, a region ends before a window that reads beyond a share, or an op that is not divided has another
    device, unless it is ``pinned``.
    """
    rng, types = np.random.default_rng(0), shapes.graph.op_types
    for _ in range(trials):
        regions = [(k, region) for k, region in enumerate(way.regions) if region.scheme != "replicated"]
        divided = {v for _, region in regions for v in region.ops}
        bounds = [(k, d) for k, region in regions for d, (first, _) in region.shares.items() if first > 0]
        by_rows = [(k, v) for k, region in regions if region.scheme == "rows" for v in region.ops]
        windows = [(k, shapes.producer(v, 0)) for k, v in by_rows if types[v] in WINDOWS]
        ends = [(k, u) for k, u in windows if u in way.regions[k].ops]
        free = [v for v, runs in enumerate(shapes.runs) if runs and v not in divided and v not in pinned]
        moves: list[tuple[Callable[..., Sharding], list[Any]]] = [
            (_with_bound, bounds),
            (_ending, ends),
            (_elsewhere, free),
        ]
        move, choices = moves[rng.integers(len(moves))]
        with contextlib.suppress(PlacementError):  # of what cannot be divided so
            if choices and (taken_s := judge(changed := move(shapes, way, choices, rng))) < way.predicted_s:
                way = replace(changed, predicted_s=taken_s)
    return way


def _with(way: Sharding, k: int, *regions: Region) -> Sharding:
    return replace(way, regions=(*way.regions[:k], *regions, *way.regions[k + 1 :]))


def _only(region: Region, ops: Container[int]) -> Region:
    kept = [(v, axis) for v, axis in zip(region.ops, region.axes, strict=True) if v in ops]
    return replace(region, ops=tuple(v for v, _ in kept), axes=tuple(axis for _, axis in kept))


def _with_bound(shapes: Shapes, way: Sharding, bounds: list[tuple[int, int]], rng: np.random.Generator) -> Sharding:
    """A region with the bound where a device begins elsewhere, by a grain at least."""
    k, device = bounds[rng.integers(len(bounds))]
    region, step = way.regions[k], rng.normal(0.0, SPREAD)
    grain, (bound, last) = shapes.grain(region) or 1, region.shares[device]
    moved = bound + grain * int(np.copysign(np.ceil(abs(step) * shapes.extent(region) / grain), step))
    shares = {d: (first, moved if end == bound else end) for d, (first, end) in region.shares.items()}
    return _with(way, k, replace(region, shares={**shares, device: (moved, last)}))


def _ending(shapes: Shapes, way: Sharding, ends: list[tuple[int, int]], rng: np.random.Generator) -> Sharding:
    """A region in two: rows are handed on before a window reads them, in place of computed twice."""
    k, end = ends[rng.integers(len(ends))]
    region, before = way.regions[k], {end}
    for v in reversed(region.ops):
        if v in before:
            before |= {shapes.producer(v, port) for port in range(len(shapes.op(v).inputs))}
    first = _only(region, before)
    scale = shapes.extent(first) / shapes.extent(region)
    shares = {d: (round(a * scale), round(b * scale)) for d, (a, b) in region.shares.items()}
    return _with(way, k, replace(first, shares=shares), _only(region, {*region.ops} - before))


def _elsewhere(shapes: Shapes, way: Sharding, free: list[int], rng: np.random.Generator) -> Sharding:
    """An op that is not divided on another device, and perhaps what alone reads it."""
    v, devices, moved = free[rng.integers(len(free))], np.array(way.devices), set[int]()
    device = rng.choice(sorted({d for region in way.regions for d in region.shares} - {way.devices[v]}))
    readers = [v]
    while len(readers) == 1 and readers[0] in free and (not moved or rng.random() < GOES_ON):
        moved |= {*readers}
        readers = shapes.graph.successors.of(readers[0]).tolist()
    devices[list(moved)] = device
    regions = [_only(region, {*region.ops} - moved) for region in way.regions]
    return replace(way, regions=tuple(r for r in regions if r.ops), devices=tuple(devices.tolist()))
