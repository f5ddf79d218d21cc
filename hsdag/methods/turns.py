"""Run turns of methods, side by side on workers: those of a portfolio, or of one method with several seeds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsdag.base.errors import ExecutionError, OptionError
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import LEAST_GAIN, Contribution, Incumbent, Limits, Result, Status
from hsdag.methods.registry import find_method, make_placer
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.base import Checkpoint, Evaluator
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.workers.pool import Exchange, Findings, Job, Pool

EXCHANGE_S = 0.25
"""Seconds between two reports of a turn on a worker to the others about what it has found."""


@dataclass(frozen=True)
class Turn:
    """A turn of a method.

    Attributes:
        share: Share of the remaining budget that the turn may use.
        round: Number that is added to the seed; 0 for a first turn.
        options: Hyper-parameters of the method; None for the default ones.
    """

    method: str
    share: float
    round: int = 0
    options: Any = None

    def take(self, problem: Problem, evaluator: Evaluator, limits: Limits) -> TurnEnd | None:
        """Let the method search, and return how the turn ended; None if the method cannot search the problem."""
        try:
            method = self.method
            placer = make_placer(method, is_cheap=True) if self.options is None else find_method(method)(self.options)
            result = placer.search(problem, evaluator, limits)
        except OptionError:
            return None
        except Exception as error:  # noqa: BLE001 - the other methods go on
            return TurnEnd(failure=f"{type(error).__name__}: {error}")
        return TurnEnd(result.status, None, result.lower_bound, result.plan, parts=result.contributions)


@dataclass(frozen=True)
class TurnEnd:
    """The end of a turn.

    Attributes:
        status: How the search ended; None if it failed.
        failure: Why the search failed; None if it did not.
        bound: Largest proven lower bound.
        plan: Best plan.
        num_plans: Number of plans that were evaluated.
        parts: Contributions of the methods that the turn's method used.
    """

    status: Status | None = None
    failure: str | None = None
    bound: Bound | None = None
    plan: Plan | None = None
    num_plans: int = 0
    parts: tuple[Contribution, ...] = ()


@dataclass(frozen=True, eq=False)
class TurnJob(Job[TurnEnd | None]):
    """A job that takes a turn on a worker; its answer is None if the method cannot search the problem.

    Attributes:
        evaluations: Largest number of evaluations, at least 1.
    """

    turn: Turn
    problem: Problem
    evaluator: Evaluator
    limits: Limits
    evaluations: float

    def run(self, exchange: Exchange) -> TurnEnd | None:
        """Search, and exchange better plans and bounds with others; end once the best plan is proven optimal."""
        told_s = time.monotonic()

        def is_over() -> bool:
            nonlocal told_s
            if time.monotonic() - told_s < EXCHANGE_S:
                return False
            best = next(iter(recorder.best()), None)
            told_s = time.monotonic()
            findings = Findings(bound=recorder.bound)
            if best is not None:
                findings = replace(findings, plan=best.plan, value=best.score.value)
            of_all = exchange(findings)
            return of_all.is_over or is_proven(of_all)

        recorder = RecordingEvaluator(
            self.evaluator, Budget(self.limits.seconds, self.evaluations), should_stop=is_over
        )
        if (end := self.turn.take(self.problem, recorder, self.limits)) is None:
            return None
        plan = end.plan or next((event.plan for event in recorder.best()), None)
        return replace(end, plan=plan, bound=end.bound or recorder.bound, num_plans=recorder.num_evaluations)


def note_turn(incumbent: Incumbent, turn: Turn, began_s: float, before: float, end: TurnEnd) -> None:
    """Append the contribution of a turn, after the contributions of the methods that it used.

    Args:
        began_s: Start of the turn, in seconds since the search began.
        before: Best value of the search at the start of the turn, in the objective's unit.
    """
    for part in (contribution.later(began_s) for contribution in end.parts):
        after = min(part.after, before)
        name = f"{part.method} in {turn.method}"
        incumbent.contributions.append(replace(part, method=name, before=before, after=after))
        began_s, before = part.ended_s, after
    after = incumbent.best_score
    incumbent.contributions.append(
        Contribution(turn.method, began_s, incumbent.elapsed_s, before, after, end.bound, end.status, end.failure)
    )


def is_proven(findings: Findings) -> bool:
    """Return whether the best plan meets the lower bound, apart from rounding."""
    bound = findings.bound
    return bound is not None and np.isfinite(findings.value) and findings.value <= bound.value * (1 + LEAST_GAIN)


MOST_SHARE, LEAST_S = 0.25, 0.5
"""Largest share of the remaining budget for one turn on a worker, and the least seconds that it gets.

Turns are short because each one begins with the best plan of all workers.
"""
LOOK_EVERY_S, GRACE_S = 0.1, 1.0
"""Seconds between two checks of what workers have found; and seconds that workers have to end after the search."""


@dataclass(eq=False)
class SideBySide:
    """A search that gives turns to all workers, which share the best plan and the largest bound.

    Attributes:
        evaluator: Evaluator that is copied to the workers.
        most_idle: End a search without a limit of seconds after this many turns with a round above 0 in a row that find
            nothing better.
        most_share: Largest share of the remaining budget for one turn.
    """

    incumbent: Incumbent
    pool: Pool
    evaluator: Evaluator
    most_idle: float
    most_share: float = MOST_SHARE

    def __post_init__(self) -> None:
        self._idle = 0
        self._running: dict[Future[TurnEnd | None], tuple[Turn, float, float]] = {}  # start in seconds, best value then
        self.pool.begin(Findings(self.incumbent.best, self.incumbent.best_score, self.incumbent.lower_bound))

    def search(self, turns: Iterable[Turn]) -> Status:
        """Take the turns in order, and return how the search ended. Raises SearchStopped when the evaluator does."""
        try:
            for turn in turns:
                if (status := self._collected(self.pool.num_workers - 1)) is not None:
                    return status
                if self.incumbent.left_s < LEAST_S or self._is_idle:
                    break
                self._submit(turn)
            if (status := self._collected(0)) is not None:
                return status
            return Status.FEASIBLE if self._is_idle or self.incumbent.left_s >= LEAST_S else Status.TIME_LIMIT
        finally:
            self._end()

    @property
    def _is_idle(self) -> bool:
        return self._idle >= self.most_idle and not np.isfinite(self.incumbent.left_s)

    def _submit(self, turn: Turn) -> None:
        """Give a turn to the pool, with its share of the remaining budget."""
        incumbent = self.incumbent
        seconds = max(min(turn.share, self.most_share) * incumbent.left_s, LEAST_S)
        limits = replace(
            incumbent.limits,
            seconds=min(seconds, incumbent.left_s),
            num_workers=1,
            seed=incumbent.limits.seed + turn.round,
            known=() if incumbent.best is None else (incumbent.best,),
            is_again=False,
            pool=None,
        )
        share = incumbent.evaluations_left / self.pool.num_workers
        job = TurnJob(turn, incumbent.problem, self.evaluator, limits, max(share, 1.0))
        self._running[self.pool.submit(job)] = turn, incumbent.elapsed_s, incumbent.best_score

    def _collected(self, most: int) -> Status | None:
        """Collect results until at most ``most`` turns run; return how the search has ended, None if it goes on."""
        while len(self._running) > most:
            done = wait(self._running, LOOK_EVERY_S, FIRST_COMPLETED).done
            self._take_over()
            ended = [self._ended(future, *self._running.pop(future)) for future in done]
            self.incumbent.check()
            proofs = [status for status in ended if status in (Status.OPTIMAL, Status.INFEASIBLE)]
            if is_proven(self.pool.findings):
                return Status.OPTIMAL
            if proofs:
                return proofs[0]
        return None

    def _take_over(self) -> None:
        """Report the best plan of any worker to the evaluator, whatever the budget, and the largest bound."""
        findings = self.pool.findings
        if findings.plan is not None and findings.value < self.incumbent.best_score:
            self.incumbent.report([findings.plan])
        self.incumbent.report(bound=findings.bound)

    def _ended(self, future: Future[TurnEnd | None], turn: Turn, began_s: float, before: float) -> Status | None:
        """Report the results of a turn that ended, and return its status; None if it has none."""
        incumbent = self.incumbent
        try:
            end = future.result()
        except ExecutionError as error:
            end = TurnEnd(failure=str(error))
        if end is None:  # the method cannot search this problem
            return None
        incumbent.report([] if end.plan is None else [end.plan], count=end.num_plans, bound=end.bound)
        self.pool.exchange(Findings(incumbent.best, incumbent.best_score, end.bound))
        if turn.round:
            self._idle = 0 if incumbent.best_score < before * (1 - LEAST_GAIN) else self._idle + 1
        note_turn(incumbent, turn, began_s, before, end)
        return end.status

    def _end(self) -> None:
        """Make the workers end, and keep what they have found."""
        self.pool.exchange(Findings(is_over=True))
        done = wait(self._running, GRACE_S).done
        self._take_over()
        for future, running in self._running.items():
            if future in done:
                self._ended(future, *running)
            else:
                future.cancel()
        self._running.clear()
        self.pool.rest()  # so that they do not disturb later measurements


ROLLOUT_SHARE, LEAST_ROLLOUT_S = 0.25, 5.0
"""Share of the budget of a learned method that measures, for workers that search in simulation first; least seconds.

With fewer seconds there is no such search, as workers need some of them to start.
"""


def search_with_restarts(
    placer: Placer[Any], problem: Problem, evaluator: Evaluator, limits: Limits, checkpoint: Checkpoint | None = None
) -> Result:
    """Search as ``placer.search`` does, and with a seeded method once on each worker, with consecutive seeds.

    Workers share the largest bound. A learned method that measures searches in this process, as without workers, but
    from the best plan that the workers have found in simulation before; they are idle while it measures. Raises what
    ``placer.search`` raises.
    """
    pool = limits.pool
    copy = evaluator.for_workers
    if pool is None or copy is None or not placer.is_seeded:
        return placer.search(problem, evaluator, limits, checkpoint)
    placer.check(problem)
    if not (placer.learns and evaluator.measures):
        return _restarted(placer, Incumbent(problem, evaluator, limits, checkpoint), copy, pool, 0)
    rollouts_s = ROLLOUT_SHARE * limits.seconds
    if rollouts_s < LEAST_ROLLOUT_S or (checkpoint is not None and checkpoint.load() is not None):
        return placer.search(problem, evaluator, limits, checkpoint)
    first = Incumbent(problem, evaluator, replace(limits, seconds=rollouts_s))
    before = _restarted(placer, first, copy, pool, 1)
    known = limits.known if before.plan is None else (*limits.known, before.plan)
    limits = replace(limits, seconds=limits.seconds - before.seconds, known=known)
    result = placer.search(problem, evaluator, limits, checkpoint)
    return replace(result, contributions=before.contributions + result.contributions)


def _restarted(placer: Placer[Any], incumbent: Incumbent, copy: Evaluator, pool: Pool, first: int) -> Result:
    """Search once on each worker, with rounds from ``first`` on, and return the best result."""
    turns = [Turn(placer.name, 1.0, first + k, options=placer.options) for k in range(pool.num_workers)]
    return incumbent.concluded(lambda shared: SideBySide(shared, pool, copy, float("inf"), 1.0).search(turns))
