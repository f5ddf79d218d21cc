"""Windows: pieces of a schedule between what stands before and behind them; what they gain, the whole gains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import IntArray, inverse_of
from hsdag.methods.incumbent import Limits
from hsdag.methods.local.chain import chain_of
from hsdag.methods.local.windows import Piece, Timeline, WindowCutter, joined, searched, starts_of
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.searches import random_problem


def layered(num_ops: int, seed: int = 0, num_devices: int = 3) -> ScheduleProblem:
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(1, num_ops), 2)
    src = dst - 1 - np.minimum(rng.geometric(1 / 8, len(dst)) - 1, dst - 1)
    edges = np.unique(np.stack([src, dst], axis=1), axis=0)
    time_s = rng.uniform(1.0, 5.0, (num_ops, num_devices))
    return ScheduleProblem.from_arrays(time_s, edges, output_bytes=1.0, link_bandwidth_bytes_per_s=1.0)


def random_plan(problem: ScheduleProblem, seed: int) -> Plan:
    rng = np.random.default_rng(seed)
    able = [np.flatnonzero(row) for row in problem.supported]
    order = inverse_of(problem.topological_order)
    return Plan(np.array([rng.choice(each) for each in able]), order)


@given(st.integers(0, 10**6), st.integers(1, 9))
@settings(max_examples=15)
def test_a_window_as_it_stands_ends_the_schedule_when_it_ends(seed: int, size: int) -> None:
    """Whatever window of it is scheduled by lists again, in its order and on its devices."""
    problem = layered(25, seed)
    units = problem_of(problem)
    line = Timeline.of(units, random_plan(problem, seed), takes_order=True)
    assert units.costs is not None
    for ops, window in WindowCutter(units.costs).windows(line, size, size // 2):
        num, free = len(ops), np.zeros((2, 0), np.int64)
        chain = chain_of(np.ones((num, problem.num_devices), dtype=np.bool_), free, np.arange(num), np.ones(1), 0)
        chain.device[:], chain.rank[:] = line.device[ops], np.arange(num)
        window.propose(chain, 0)
        assert starts_of(window.lists) == pytest.approx(line.start_s[ops])
        assert chain.state["value"][0] == pytest.approx(line.total_s)


def test_what_is_behind_a_window_comes_earlier_by_what_the_window_gains() -> None:
    times = np.array([0.0, 2.0, 10.0]), np.array([9.0, 3.0, 12.0])
    line = Timeline(np.arange(3), np.array([0, 1, 1]), *times, total_s=12.0)
    device, rank = joined(line, [Piece(np.array([0, 1]), np.array([0, 1]), np.array([0.0, 8.0]), gain_s=5.0)])
    assert device.tolist() == [0, 1, 1]
    assert rank.tolist() == [0, 2, 1]  # the last op starts at 5 s now


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_what_a_window_gains_the_whole_schedule_gains(seed: int) -> None:
    """In a schedule by lists; devices that never wait may take other ops first."""
    problem = layered(40, seed)
    units = problem_of(problem)
    line = Timeline.of(units, random_plan(problem, seed), takes_order=True)
    assert units.costs is not None
    for ops, window in WindowCutter(units.costs).windows(line, 10, 0):
        gain_s = searched(window, line.device[ops], np.arange(len(ops), dtype=float), 60, (1e-2, 1e-4), seed)
        device, rank = joined(line, [Piece(ops, window.lists.device, starts_of(window.lists), gain_s)])
        assert ended_s(units.costs, device, rank) <= line.total_s - gain_s + 1e-9


def ended_s(costs: ScheduleProblem, device: IntArray, rank: IntArray) -> float:
    """When the last op ends where each is behind the one before it on its device."""
    free_s, end_s = np.zeros(costs.num_devices), np.zeros(costs.num_ops)
    ready_s = np.zeros(costs.time_s.shape)
    for v in np.argsort(rank).tolist():
        d = device[v]
        end_s[v] = free_s[d] = max(free_s[d], ready_s[v, d]) + costs.time_s[v, d]
        for k in np.flatnonzero(costs.edge_src == v):
            at_s = end_s[v] + np.where(np.arange(costs.num_devices) == d, 0.0, costs.edge_bytes[k])
            ready_s[costs.edge_dst[k]] = np.maximum(ready_s[costs.edge_dst[k]], at_s)
    return float(end_s.max())


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_a_timeline_is_the_simulated_run(seed: int) -> None:
    problem = random_problem(seed)
    units, plan = problem_of(problem), random_plan(problem, seed)
    if units.num_units != problem.num_ops:
        return
    unit = units.units.partition.labels
    ordered = Plan(units.supported.argmax(axis=1), inverse_of(units.units.graph.topological_order))
    line = Timeline.of(units, ordered, takes_order=True)
    judge = ScheduleEvaluator(problem, Semantics(), unit_of_op=unit)
    run = simulate(problem, judge.devices(ordered), Semantics(), judge.ranks(ordered))
    assert line.start_s[unit].tolist() == run.start_s.tolist()
    assert line.total_s == run.makespan_s
    assert plan.order is not None


def test_windows_find_better_plans_than_they_begin_with_and_count_what_they_try() -> None:
    problem = layered(600, num_devices=4)
    units = problem_of(problem)
    evaluator = ScheduleEvaluator.of(units)
    start = make_placer("heft").search(units, evaluator)
    recorder = RecordingEvaluator(evaluator, Budget(evaluations=20_000))
    result = make_placer("windows").search(units, recorder, Limits(num_workers=2))
    assert result.score < 0.99 * start.score
    assert recorder.num_evaluations >= 10_000


def test_a_window_alone_is_not_given_to_a_device_that_lacks_an_op() -> None:
    time_s = layered(60).time_s.copy()
    time_s[::3, 1] = np.nan
    problem = ScheduleProblem.from_arrays(time_s, [(v, v + 1) for v in range(59)], output_bytes=1.0)
    units = problem_of(problem)
    evaluator = ScheduleEvaluator.of(units)
    result = make_placer("windows", changes={"size": "20"}).search(
        units, RecordingEvaluator(evaluator, Budget(evaluations=5000)), Limits(num_workers=1)
    )
    assert result.plan is not None
    assert units.is_legal(result.plan.placement)
