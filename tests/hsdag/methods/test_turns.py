"""What turns are given on workers, what they tell and hear, and what becomes of what they find."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hsdag.base.errors import ExecutionError
from hsdag.methods.incumbent import Incumbent, Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.methods.turns import SideBySide, Turn, TurnEnd, TurnJob, search_with_restarts
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.workers.pool import Exchange, Findings, Job, Pool
from tests.hsdag.methods.learned.hsdag.test_policy import Store
from tests.hsdag.methods.searches import not_none, reading_near, searched
from tests.hsdag.workers.here import Here, Silent

PROBLEM = reading_near(30, 3)
UNITS = problem_of(PROBLEM)
EVALUATOR = ScheduleEvaluator.of(UNITS)


class Recording(Here):
    """Computes turns, one of whose methods costs three workers, and keeps them."""

    def __init__(self, lost: str = "") -> None:
        super().__init__()
        self.jobs, self._lost = list[TurnJob](), lost

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:
        assert isinstance(job, TurnJob)
        self.jobs.append(job)
        if job.turn.method == self._lost:
            raise ExecutionError("TurnJob ended 3 workers")
        return super().call(job, exchange, is_over)


def turn(exchange: Exchange) -> TurnEnd:
    """Annealing that never gives up, which tells four times a second what it has found, for 20 seconds at most."""
    options = make_placer("sa", changes={"most_idle_rounds": "1000000"}).options
    return not_none(TurnJob(Turn("sa", 1.0, options=options), UNITS, EVALUATOR, Limits(20.0, 1), np.inf).run(exchange))


@pytest.mark.parametrize(
    "known", [Findings(is_over=True), Findings(Plan(np.zeros(30, dtype=np.int64)), 1.0, Bound(1.0, "a test"))]
)
def test_a_turn_ends_when_all_do_and_when_another_one_has_the_proof(known: Findings) -> None:
    asked: list[Findings] = []

    def exchange(own: Findings) -> Findings:
        asked.append(own)
        return known

    end = turn(exchange)
    assert len(asked) < 10
    assert asked[-1].plan is not None
    assert asked[-1].value == EVALUATOR.evaluate([asked[-1].plan])[0].value
    assert end.plan is not None


def test_restarts_share_the_evaluations_and_have_seeds_in_a_row() -> None:
    hosts = [Recording(), Recording()]
    with Pool(hosts) as pool:
        found, recorder = searched(PROBLEM, "ea", pool, seed=5, evaluations=400)
    alone = [searched(PROBLEM, "ea", None, seed=seed, evaluations=200)[0].score for seed in (5, 6)]
    assert found.score == min(alone)
    jobs = [job for host in hosts for job in host.jobs]
    assert sorted(job.limits.seed for job in jobs) == [5, 6]
    assert [job.evaluations for job in jobs] == [200, 200]
    assert recorder.num_evaluations <= 400


def test_a_turn_begins_with_the_best_plan_of_those_before_it_and_all_are_counted() -> None:
    host = Recording()
    with Pool([host]) as pool:
        found, recorder = searched(PROBLEM, "auto", pool, evaluations=500)
        assert pool.findings.is_over
    known_s = [EVALUATOR.evaluate(job.limits.known)[0].value for job in host.jobs]
    assert known_s == [min(known_s[: number + 1]) for number in range(len(known_s))]
    assert [job.turn.method for job in host.jobs[:2]] == ["heft", "critical-path"]
    assert known_s[1] == searched(PROBLEM, "heft", None)[0].score < known_s[0]
    spent = [500 - job.evaluations for job in host.jobs]
    assert spent == sorted(spent)
    assert recorder.num_evaluations > spent[-1] > len(recorder.events)
    assert found.plan is not None


def test_a_proof_that_is_told_ends_the_search_which_leaves_its_workers_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.methods.turns.GRACE_S", 0.0)
    alone = searched(PROBLEM, "heft", None)[0]

    class Proves(Here):
        def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
            exchange(Findings(alone.plan, alone.score, Bound(alone.score, "a test")))
            while not exchange(Findings()).is_over:
                time.sleep(0.01)
            time.sleep(0.3)
            return TurnEnd()

    with Pool([Proves()]) as pool:
        found = searched(PROBLEM, "ea", pool, seconds=20.0)[0]
        assert (found.status, found.plan) == (Status.OPTIMAL, alone.plan)
        assert not pool._open


def test_a_method_that_costs_its_workers_is_reported_and_the_others_go_on() -> None:
    with Pool([Recording("heft")]) as pool:
        found, _ = searched(PROBLEM, "auto", pool, evaluations=300)
    failures = {each.method: each.failure for each in found.contributions}
    assert failures["heft"] == "TurnJob ended 3 workers"
    assert failures["greedy"] is None
    assert found.plan is not None


@pytest.mark.parametrize(
    ("left_s", "share", "seconds"), [(40.0, 0.15, 6.0), (40.0, 1.0, 10.0), (1.0, 1.0, 0.5), (0.3, 1.0, 0.3)]
)
def test_a_turn_on_a_worker_has_a_share_of_what_is_left_and_half_a_second_at_least(
    left_s: float, share: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: Any = []
    pool: Any = SimpleNamespace(begin=lambda _: None, num_workers=2, submit=lambda job: jobs.append(job) or Future())
    monkeypatch.setattr(Incumbent, "left_s", left_s)
    incumbent = Incumbent(UNITS, EVALUATOR, Limits(seed=3))
    SideBySide(incumbent, pool, EVALUATOR, 3)._submit(Turn("sa", share, 2))
    assert (jobs[0].limits.seconds, jobs[0].limits.seed) == (seconds, 5)


def test_no_turn_begins_when_less_than_half_a_second_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    said: Any = []
    pool: Any = SimpleNamespace(
        begin=said.append, exchange=said.append, rest=lambda: None, findings=Findings(), num_workers=2
    )
    monkeypatch.setattr(Incumbent, "left_s", 0.4)
    search = SideBySide(Incumbent(UNITS, EVALUATOR, Limits()), pool, EVALUATOR, 3)
    assert search.search([Turn("sa", 1.0, 2)]) is Status.TIME_LIMIT
    assert [each.is_over for each in said] == [False, True]


class Measuring(RecordingEvaluator):
    """Stands for an evaluator that measures some of the plans, and keeps those that it is asked to evaluate."""

    measures = True

    def __init__(self, seconds: float) -> None:
        super().__init__(EVALUATOR, Budget(seconds))
        self.asked: list[Plan] = []

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        self.asked += plans
        return super().evaluate(plans)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_learned_method_that_measures_does_so_here_from_the_best_plan_of_the_workers(is_resumed: bool) -> None:
    """The updates end each search, long before its seconds do."""
    host, kept, evaluator = Recording(), Store(), Measuring(400.0)
    placer = make_placer("hsdag", changes={"updates": "2", "plans_per_update": "4"}, is_cheap=True)
    if is_resumed:
        placer.search(UNITS, Measuring(400.0), Limits(400.0, 1), kept)
    with Pool([host]) as pool:
        result = search_with_restarts(placer, UNITS, evaluator, Limits(400.0, 1, seed=7, pool=pool), kept)
    assert [(job.limits.seed, job.limits.seconds <= 100.0) for job in host.jobs] == [] if is_resumed else [(8, True)]
    assert kept.states
    assert "update" in kept.states[-1][1]
    if not is_resumed:
        assert len(result.contributions) == 1
        assert EVALUATOR.evaluate(evaluator.asked[:1])[0].value == result.contributions[0].after
        assert len(evaluator.asked) > 4


@pytest.mark.slow
def test_the_portfolio_has_an_answer_where_no_worker_does() -> None:
    searched(PROBLEM, "met", None)  # what is compiled is compiled before the clock starts, as in a command
    with Pool([Silent()]) as pool:
        found, _ = searched(PROBLEM, "auto", pool, 2.0)
    assert found.status is Status.TIME_LIMIT
    assert found.plan is not None
    assert [each.method for each in found.contributions] == ["met"]
