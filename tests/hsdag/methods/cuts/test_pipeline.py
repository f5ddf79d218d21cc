"""Pipelines: stages equal to brute force over partitions and device orders, within memory, balanced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.cuts.pipeline import Line, PipelinePlacer, balanced_stages, quickest_stages
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.values import period_s
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.searches import not_none


def drawn(seed: int, num_ops: int, num_devices: int) -> ScheduleProblem:
    """Links into a device are equal where there are more than two; memories that some stages exceed, and launches."""
    rng, square = np.random.default_rng(seed), (num_devices, num_devices)
    shape = square if num_devices == 2 else (1, num_devices)
    tables: dict[str, Any] = {
        "link_latency_s": np.broadcast_to(rng.uniform(0.1, 1.0, shape), square),
        "link_bandwidth_bytes_per_s": np.broadcast_to(rng.uniform(6.0, 60.0, shape), square),
        "weight_bytes": rng.random(num_ops),
        "memory_bytes": rng.choice([np.inf, 0.2 * num_ops, 0.4 * num_ops], num_devices),
        "launch_s": rng.uniform(0.0, 2.0, num_devices),
        "transfer_overhead_s": 0.2,
    }
    return random_problem(seed, num_ops, num_devices, 0.4, real=True, output_bytes=1.0, **tables)


def partitions(num_ops: int, num_devices: int) -> Iterator[IntArray]:
    """Every partition of a line into stages, in every order of devices; stages may be empty."""
    for order in itertools.permutations(range(num_devices)):
        for cuts in itertools.combinations_with_replacement(range(num_ops + 1), num_devices - 1):
            lengths = np.diff([0, *cuts, num_ops])
            yield np.repeat(order, lengths)


def loads_s(problem: ScheduleProblem, device: IntArray, boundary: float) -> list[float]:
    """Sums of ops, a launch, and what comes in, of each device; infinite where weights or support forbid it."""
    if not problem.supported[np.arange(problem.num_ops), device].all():
        return [np.inf]
    if (np.bincount(device, problem.weight_bytes, problem.num_devices) > problem.memory_bytes).any():
        return [np.inf]
    loads = {d: boundary * problem.launch_s[d] for d in set(device.tolist())}
    for v, d in enumerate(device.tolist()):
        loads[d] += problem.time_s[v, d] + problem.op_overhead_s
    sent: dict[tuple[int, int], float] = {}
    for u, v, size in zip(problem.edge_src.tolist(), problem.edge_dst.tolist(), problem.edge_bytes, strict=True):
        if device[u] != device[v]:
            sent[u, int(device[v])] = max(sent.get((u, int(device[v])), 0.0), float(size))
    for (u, d), size in sent.items():
        link_s = problem.link_latency_s[device[u], d] + size / problem.link_bandwidth_bytes_per_s[device[u], d]
        loads[d] += boundary * (link_s + problem.transfer_overhead_s)
    return [float(load) for load in loads.values()]


def in_order(problem: ScheduleProblem, line: IntArray) -> IntArray:
    """Devices of places as devices of ops."""
    device = np.empty(problem.num_ops, dtype=np.int64)
    device[problem.topological_order] = line
    return device


def search(problem: ScheduleProblem, how: Semantics | None = None, objective: Objective = THROUGHPUT) -> IntArray:
    units = problem_of(problem, objective, how or Semantics())
    result = PipelinePlacer().search(units, ScheduleEvaluator.of(units))
    return units.expand(not_none(result.plan).placement)


@pytest.mark.parametrize(("partition", "total"), [(balanced_stages, max), (quickest_stages, sum)])
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0]))
def test_stages_equal_brute_force_over_partitions_and_orders(
    partition: Callable[..., IntArray | None],
    total: Callable[[list[float]], float],
    seed: int,
    num_ops: int,
    num_devices: int,
    boundary: float,
) -> None:
    problem = drawn(seed, num_ops, num_devices)
    every = (in_order(problem, line) for line in partitions(num_ops, num_devices))
    best_s = min(total(loads_s(problem, device, boundary)) for device in every)
    found = partition(Line.of(problem, boundary=boundary), problem.memory_bytes)
    assert (found is None) == np.isinf(best_s)
    if found is not None:
        assert total(loads_s(problem, found, boundary)) == pytest.approx(best_s, rel=1e-9)


def test_stages_in_turn_of_more_devices_than_are_ordered_use_those_that_fit() -> None:
    problem = ScheduleProblem.from_arrays(
        np.ones((14, 7)), [(v, v + 1) for v in range(13)], weight_bytes=1.0, memory_bytes=2.0, link_latency_s=0.1
    )
    found = not_none(quickest_stages(Line.of(problem, boundary=1.0), problem.memory_bytes))
    assert np.bincount(found).tolist() == [2] * 7


def layers(memory: list[float], cheap: int = 6) -> ScheduleProblem:
    """Twelve alike ops in a row, of 10 bytes each; the result of one is small, and a boundary is cheap there."""
    sizes = np.where(np.arange(12) == cheap - 1, 1.0, 8.0)
    return ScheduleProblem.from_arrays(
        np.ones((12, len(memory))),
        [(v, v + 1) for v in range(11)],
        output_bytes=sizes,
        weight_bytes=10.0,
        memory_bytes=memory,
        link_bandwidth_bytes_per_s=10.0,
    )


def test_one_inference_at_a_time_is_split_only_where_memory_forces_it_and_where_it_costs_least() -> None:
    how = Semantics(execution=Execution.SEQUENTIAL)
    whole = search(layers([200.0, 200.0]), how, objective=LATENCY)
    assert len(set(whole.tolist())) == 1
    forced = search(layers([100.0, 100.0], cheap=8), how, objective=LATENCY)
    assert np.flatnonzero(np.diff(forced)).tolist() == [7]
    three = search(layers([100.0, 100.0, 100.0]), how, objective=LATENCY)
    assert len(set(three.tolist())) == 2


def test_more_devices_than_are_ordered_take_their_stages_by_speed() -> None:
    speed = np.array([3.0, 1.0, 2.0, 7.0, 5.0, 4.0, 6.0])
    problem = ScheduleProblem.from_arrays(np.tile(speed, (14, 1)), [(v, v + 1) for v in range(13)])
    found = not_none(balanced_stages(Line.of(problem, boundary=1.0), problem.memory_bytes))
    used = [int(d) for d, _ in itertools.groupby(found)]
    assert used == [d for d in np.argsort(speed) if d in used]
    every = itertools.combinations_with_replacement(range(15), 6)
    lengths = np.array([np.diff([0, *cuts, 14]) for cuts in every])
    best_s = (lengths * np.sort(speed)).max(axis=1).min()
    assert (np.bincount(found, minlength=7) * speed).max() == pytest.approx(best_s)


def test_independent_links_are_free_and_the_period_is_the_balanced_load() -> None:
    for seed in range(10):
        problem = replace(drawn(seed, 7, 2), memory_bytes=np.full(2, np.inf))
        device = search(problem)
        every = np.array([in_order(problem, line) for line in partitions(7, 2)])
        assert period_s(problem, device[None])[0] == pytest.approx(period_s(problem, every).min())


def test_results_that_do_not_fit_beside_the_weights_move_the_boundary() -> None:
    problem = ScheduleProblem.from_arrays(
        np.ones((6, 2)),
        [(v, v + 1) for v in range(5)],
        output_bytes=[1.0, 1.0, 60.0, 1.0, 1.0, 1.0],
        weight_bytes=10.0,
        memory_bytes=[95.0, 95.0],
    )
    device = search(problem)
    assert ScheduleEvaluator(problem, Semantics(), THROUGHPUT).evaluate([Plan(device)])[0].failure is None
    assert len(np.unique(device)) == 2
