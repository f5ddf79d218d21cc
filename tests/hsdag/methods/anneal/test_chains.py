"""Compiled local search: chains of moves over whole plans, and over windows of a schedule."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.base.errors import OptionError
from hsdag.ir.graph.computation_graph import inverse_of
from hsdag.methods.anneal.chain import Chain, MoveKind, chain_for, chain_of, shares_of
from hsdag.methods.anneal.sa import MOVES_OF_LISTS
from hsdag.methods.anneal.values import lists_of, schedule, scheduled
from hsdag.methods.anneal.windows import UnitTimes, WindowCutter, WindowResult, joined_pieces, searched, starts_of
from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.lists.schedule import list_schedule
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order, Semantics
from hsdag.runtime.problem.tables import tables_of
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.searches import not_none, random_problem

EVERY_MOVE = dict.fromkeys(MoveKind, 1.0)


def with_sets(problem: ScheduleProblem, seed: int) -> ScheduleProblem:
    """Some ops must share a device that supports them all."""
    rng = np.random.default_rng(seed)
    names = [f"s{rng.integers(3)}" if rng.random() < 0.5 else "" for _ in range(problem.num_ops)]
    time_s = np.where(np.array(names)[:, None] != "", np.nan_to_num(problem.time_s, nan=1.0), problem.time_s)
    return replace(problem, time_s=time_s, labels=replace(problem.labels, colocate=tuple(names)))


def begun_chain(
    units: Problem, *, takes_order: bool, seed: int = 0, moves: dict[MoveKind, float] | None = None
) -> Chain:
    """A chain whose units are all on the first device that supports them, in a random order."""
    chain = chain_for(units, shares_of(units, moves or EVERY_MOVE, takes_order=takes_order), seed)
    chain.device[:] = units.supported.argmax(axis=1)
    chain.rank[:] = np.random.default_rng(seed).permutation(units.num_units)
    return chain


@pytest.mark.usefixtures("both_ways")
@given(
    st.integers(0, 10**6), st.sampled_from([LATENCY, THROUGHPUT]), st.sampled_from(list(Execution)),
    st.sampled_from(LinkSharing), st.sampled_from([None, *Order]), st.booleans(),
)  # fmt: skip
def test_the_value_of_a_chain_is_that_of_its_plan(
    seed: int, objective: Objective, how: Execution, links: LinkSharing, order: Order | None, memory: bool
) -> None:
    if links is LinkSharing.BLOCKING and objective is LATENCY:
        links = LinkSharing.CHANNEL
    problem = with_sets(random_problem(seed, memory=memory), seed)
    problem = replace(problem, memory_bytes=0.4 * problem.memory_bytes)  # less than most plans need
    semantics = Semantics(how, order, links)
    units = problem_of(problem, objective, semantics)
    evaluator = ScheduleEvaluator.of(units)
    without_limits = replace(problem, memory_bytes=np.full(problem.num_devices, np.inf))
    unlimited = ScheduleEvaluator.of(problem_of(without_limits, objective, semantics))
    if not shares_of(units, EVERY_MOVE, takes_order=evaluator.takes_order).any():
        return
    chain = begun_chain(units, takes_order=evaluator.takes_order, seed=seed)
    values = scheduled(units, takes_order=evaluator.takes_order)
    values.propose(chain, 0)
    chain.state["temperature"], chain.state["cooling"] = 0.1, 1.0
    for _ in range(5):
        values.propose(chain, 20)
        rank = inverse_of(np.argsort(chain.rank, kind="stable"))
        plan = Plan(chain.device, rank if evaluator.takes_order else None)
        (score,), (free,) = evaluator.evaluate([plan]), unlimited.evaluate([plan])
        assert units.is_legal(chain.device)
        values.propose(chain, 0)  # an excess is that of the last proposal
        assert (score.failure is not None) == (chain.state["excess"][0] > 0)
        assert chain.state["value"][0] == pytest.approx(free.value * (1 + 10 * chain.state["excess"][0]), rel=1e-12)
        assert score.failure is not None or chain.state["best"][0] <= score.value * (1 + 1e-12)


def search(problem: ScheduleProblem, threads: int, most: float) -> tuple[RecordingEvaluator, Plan]:
    recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(evaluations=most))
    result = make_placer("sa").search(problem_of(problem), recorder, Limits(num_workers=threads, seed=4))
    return recorder, not_none(result.plan)


@pytest.mark.parametrize("most", [900.0, 30_000.0])
def test_the_number_of_threads_changes_nothing(most: float) -> None:
    problem = layered(40)
    one, other = search(problem, 1, most), search(problem, 3, most)
    assert one[1] == other[1]
    assert one[0].num_evaluations == other[0].num_evaluations <= most


def test_what_chains_have_found_is_kept_when_the_search_is_stopped() -> None:
    units, asked, judge = problem_of(layered(40)), itertools.count(), ScheduleEvaluator(layered(40), Semantics())
    recorder = RecordingEvaluator(judge, should_stop=lambda: next(asked) >= 3)
    result = make_placer("sa", changes={"first_round": "1000000000"}).search(units, recorder, Limits(seed=1))
    assert result.status is Status.TIME_LIMIT
    alone = [Plan(np.full(units.num_units, d)) for d in range(3)]
    assert result.score < min(score.value for score in judge.evaluate(alone))


@pytest.mark.parametrize(
    "change", ["num_chains=0", "coldest=0.5", "cooling=0", "growth=0.5", "lists=2", "restarted=-1"]
)
def test_annealing_refuses_options_out_of_range(change: str) -> None:
    name, value = change.split("=")
    with pytest.raises(OptionError, match="sa takes counts and a finite growth of at least 1"):
        make_placer("sa", changes={name: value})


@given(st.integers(0, 10**6))
def test_units_go_by_rank_each_to_its_pin_or_where_it_ends_first(seed: int) -> None:
    problem, rng = random_problem(seed), np.random.default_rng(seed)
    pin = np.where(rng.random(problem.num_ops) < 0.7, -1, problem.supported.argmax(axis=1))
    rank, lists = rng.permutation(problem.num_ops).astype(float), lists_of(problem)
    schedule(lists, np.where(pin < 0, problem.num_devices, pin), rank)
    is_elsewhere = (pin[:, None] >= 0) & (np.arange(problem.num_devices) != pin[:, None])
    time_s = np.where(is_elsewhere, np.nan, problem.time_s + problem.op_overhead_s)
    problem = replace(problem, time_s=time_s, op_overhead_s=0.0)
    expected = list_schedule(tables_of(problem), -rank)
    assert lists.device.tolist() == expected.device.tolist()
    assert lists.rank.tolist() == inverse_of(expected.sequence).tolist()


@given(st.integers(0, 10**6))
def test_the_value_of_a_chain_over_list_schedules_is_that_of_its_plan(seed: int) -> None:
    problem = random_problem(seed)
    units = problem_of(problem)
    evaluator = ScheduleEvaluator.of(units)
    share = shares_of(units, MOVES_OF_LISTS, takes_order=True)
    if not share.any():
        return
    chain = chain_for(units, share, seed, has_pins=True)
    values = scheduled(units, takes_order=True)._replace(lists=lists_of(not_none(units.costs)))
    chain.device[:], chain.rank[:] = units.num_devices, np.arange(units.num_units)
    values.propose(chain, 0)
    chain.state["temperature"], chain.state["cooling"] = 0.1, 1.0
    for _ in range(4):
        values.propose(chain, 25)
        schedule(values.lists, chain.best_device, chain.best_rank)
        order = inverse_of(np.argsort(values.lists.rank, kind="stable"))
        assert evaluator.evaluate([Plan(values.lists.device, order)])[0].value == pytest.approx(chain.state["best"][0])


def layered(num_ops: int, seed: int = 0, num_devices: int = 3) -> ScheduleProblem:
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(1, num_ops), 2)
    src = dst - 1 - np.minimum(rng.geometric(1 / 8, len(dst)) - 1, dst - 1)
    edges = np.unique(np.stack([src, dst], axis=1), axis=0)
    time_s = rng.uniform(1.0, 5.0, (num_ops, num_devices))
    return ScheduleProblem.from_arrays(time_s, edges, output_bytes=1.0, link_bandwidth_bytes_per_s=1.0)


def random_plan(problem: ScheduleProblem, seed: int) -> Plan:
    rng = np.random.default_rng(seed)
    device = np.array([rng.choice(np.flatnonzero(row)) for row in problem.supported])
    return Plan(device, inverse_of(problem.topological_order))


@given(st.integers(0, 10**6), st.integers(1, 9))
@settings(max_examples=15)
def test_a_window_as_it_stands_ends_the_schedule_when_it_ends(seed: int, size: int) -> None:
    """Whatever window of it is scheduled by lists again, in its order and on its devices."""
    problem = layered(25, seed)
    units = problem_of(problem)
    line = UnitTimes.of(units, random_plan(problem, seed), takes_order=True)
    for ops, window in WindowCutter(not_none(units.costs)).windows(line, size, size // 2):
        num, free = len(ops), np.zeros((2, 0), np.int64)
        chain = chain_of(np.ones((num, problem.num_devices), dtype=np.bool_), free, np.arange(num), np.ones(1), 0)
        chain.device[:], chain.rank[:] = line.device[ops], np.arange(num)
        window.propose(chain, 0)
        assert starts_of(window.lists) == pytest.approx(line.start_s[ops])
        assert chain.state["value"][0] == pytest.approx(line.total_s)


def test_what_is_behind_a_window_comes_earlier_by_what_the_window_gains() -> None:
    """The second op takes no time and ends as the first one starts."""
    times = np.array([0.0, 2.0, 10.0]), np.array([9.0, 3.0, 12.0])
    line = UnitTimes(np.arange(3), np.array([0, 1, 1]), *times, total_s=12.0)
    device, rank = joined_pieces(
        line, [WindowResult(np.array([0, 1]), np.array([0, 0]), np.array([8.0, 4.0]), gain_s=5.0)]
    )
    assert device.tolist() == [0, 0, 1]
    assert rank.tolist() == [2, 0, 1]  # the last op ends at 7 s now


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_what_a_window_gains_the_whole_schedule_gains(seed: int) -> None:
    """In a schedule by lists; devices that never wait may take other ops first."""
    problem = layered(40, seed)
    units = problem_of(problem)
    line = UnitTimes.of(units, random_plan(problem, seed), takes_order=True)
    for ops, window in WindowCutter(not_none(units.costs)).windows(line, 10, 0):
        gain_s = searched(window, line.device[ops], 60, (1e-2, 1e-4), seed)
        device, rank = joined_pieces(line, [WindowResult(ops, window.lists.device, window.lists.end_s, gain_s)])
        lists = lists_of(not_none(units.costs))
        schedule(lists, device, rank.astype(np.float64))
        assert lists.end_s.max() <= line.total_s - gain_s + 1e-9
