"""Coarse, then fine: which ops are heavy, what is sent between them, and where light ones go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.methods.repeated.coarse import MOST_CHOICES, coarse_of, refined_schedule
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.searches import not_none

LIGHT_S = 1e-3


def halves() -> ScheduleProblem:
    """Two products of 5 s on two equal devices, each in two parts whose large results are added up at once."""
    time_s = np.array([5.0, 5.0, LIGHT_S, 5.0, 5.0, LIGHT_S, LIGHT_S, LIGHT_S])
    edges = [(0, 2), (1, 2), (3, 5), (4, 5), (2, 6), (5, 6), (6, 7)]
    sizes = [20.0, 20.0, LIGHT_S, 20.0, 20.0, LIGHT_S, LIGHT_S, LIGHT_S]
    return ScheduleProblem.from_arrays(
        np.repeat(time_s[:, None], 2, axis=1), edges, output_bytes=sizes, link_bandwidth_bytes_per_s=1.0
    )


def drawn(seed: int, num_ops: int = 30) -> ScheduleProblem:
    """A third of the ops takes nearly all of the time."""
    rng = np.random.default_rng(seed)
    time_s = np.where(rng.random(num_ops) < 1 / 3, rng.uniform(1.0, 3.0, num_ops), LIGHT_S)
    edges = [(u, v) for v in range(num_ops) for u in range(max(v - 4, 0), v) if rng.random() < 0.4]
    sizes = np.where(rng.random(num_ops) < 0.3, 5.0, 0.01)
    return ScheduleProblem.from_arrays(
        np.repeat(time_s[:, None], 3, axis=1), edges, output_bytes=sizes, link_bandwidth_bytes_per_s=1.0
    )


def test_a_light_op_goes_with_the_last_heavy_one_that_sends_it_much() -> None:
    coarse = not_none(coarse_of(halves()))
    assert coarse.heavy.tolist() == [0, 1, 1, 2, 3, 3, -1, -1]
    sent = dict(
        zip(zip(coarse.costs.edge_src, coarse.costs.edge_dst, strict=True), coarse.costs.edge_bytes, strict=True)
    )
    assert sent == {(0, 1): 20.0, (2, 3): 20.0}


def test_what_passes_through_a_light_op_is_the_least_on_the_way_and_the_most_of_all_ways() -> None:
    time_s = np.array([4.0, LIGHT_S, LIGHT_S, 4.0, LIGHT_S, LIGHT_S])
    edges = [(0, 1), (1, 3), (0, 2), (2, 3), (3, 4), (4, 5)]
    problem = ScheduleProblem.from_arrays(
        np.repeat(time_s[:, None], 2, axis=1),
        edges,
        edge_bytes=[0.3, 0.1, 0.2, 0.15, 0.1, 0.1],
        output_bytes=0.0,
        link_bandwidth_bytes_per_s=1.0,
    )
    coarse = not_none(coarse_of(problem))
    assert coarse.heavy.tolist() == [0, -1, -1, 1, -1, -1]
    assert coarse.costs.edge_bytes.tolist() == [0.15]


@given(st.integers(0, 10**6))
def test_heavy_ops_come_in_order_and_take_light_ones_in_that_follow_them(seed: int) -> None:
    problem = drawn(seed)
    if (coarse := coarse_of(problem)) is None:
        return
    assert (coarse.costs.edge_src < coarse.costs.edge_dst).all()
    place = np.empty(problem.num_ops, dtype=np.int64)
    place[problem.topological_order] = np.arange(problem.num_ops)
    for unit in range(coarse.costs.num_ops):
        members = np.flatnonzero(coarse.heavy == unit)
        first = members[np.argmin(place[members])]
        assert problem.time_s[first, 0] >= 1.0
        assert coarse.costs.time_s[unit] == pytest.approx(problem.time_s[members].sum(axis=0))


@given(st.integers(0, 10**6))
def test_heavy_ops_stay_on_their_devices_and_every_op_has_a_rank(seed: int) -> None:
    problem = drawn(seed)
    if (coarse := coarse_of(problem)) is None:
        return
    run = simulate(coarse.costs, np.random.default_rng(seed).integers(3, size=coarse.costs.num_ops))
    device, rank = refined_schedule(problem, coarse, run)
    is_heavy = coarse.heavy >= 0
    assert (device[is_heavy] == run.device[coarse.heavy[is_heavy]]).all()
    assert sorted(rank.tolist()) == list(range(problem.num_ops))
    assert (rank[problem.edge_src] < rank[problem.edge_dst]).all()


def test_parts_of_a_sum_share_a_device_and_two_sums_do_not() -> None:
    units = problem_of(halves())
    recorder = RecordingEvaluator(ScheduleEvaluator.of(units), Budget(evaluations=300))
    found = make_placer("coarse").search(units, recorder, Limits(num_workers=1))
    assert found.score == pytest.approx(10 + 4 * LIGHT_S, abs=1e-6)
    assert recorder.num_evaluations <= 300


def test_there_is_no_coarse_problem_where_heavy_ops_are_many_or_nearly_all() -> None:
    many = MOST_CHOICES // 2 + 1
    time_s = np.r_[np.ones(many), np.full(2 * many, 1e-9)]
    assert coarse_of(ScheduleProblem.from_arrays(np.repeat(time_s[:, None], 2, axis=1), [])) is None
    assert coarse_of(ScheduleProblem.from_arrays(np.ones((9, 2)), [])) is None
    units = problem_of(ScheduleProblem.from_arrays(np.ones((9, 2)), []))
    found = make_placer("coarse").search(units, ScheduleEvaluator.of(units))
    assert found.note == "no few ops take nearly all of the time"


@pytest.mark.parametrize(("lacking", "expected"), [([0], 1), ([0, 1], -1)])
def test_a_light_op_goes_with_a_heavy_one_that_some_device_supports_with_it(lacking: list[int], expected: int) -> None:
    """Device 0 lacks the light op, and device 1 may lack the heavy one."""
    problem = halves()
    time_s = problem.time_s.copy()
    time_s[[2, 1][: len(lacking)], lacking] = np.nan
    coarse = not_none(coarse_of(replace(problem, time_s=time_s)))
    assert coarse.heavy[2] == expected
    assert coarse.costs.supported.any(axis=1).all()
    assert coarse.costs.supported[1].tolist() == [len(lacking) == 2, len(lacking) == 1]
