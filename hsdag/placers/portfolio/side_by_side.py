"""Turns of a portfolio side by side, on workers in other processes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.fleet.pool import Findings, Pool
from hsdag.ir.errors import ExecutionError
from hsdag.placers.incumbent import LEAST_GAIN, Contribution, Incumbent, Status
from hsdag.placers.portfolio.turns import Turn, TurnEnd, TurnJob, is_proven

MOST_SHARE, LEAST_S = 0.25, 0.5
"""Of what is left of the budget, what one turn on a worker may take, and seconds that it gets in any case: the next one
begins with the best plan of all."""
LOOK_EVERY_S, GRACE_S = 0.1, 1.0
"""How often it is looked what workers have found, and how long they have to end when the search does."""


@dataclass(frozen=True, eq=False)
class _Running:
    """A turn that a worker has, since when, and the best value then."""

    turn: Turn
    began_s: float
    before: float


class SideBySide:
    """Hands out turns to as many workers as there are; all hear of the best plan and the largest bound.

    ``most_idle`` turns of annealing in a row that find nothing better end a search without a limit of seconds.
    """

    def __init__(
        self, incumbent: Incumbent, pool: Pool, evaluator: Evaluator, most_idle: float, most_share: float = MOST_SHARE
    ) -> None:
        self._incumbent, self._pool, self._most_idle, self._idle = incumbent, pool, most_idle, 0
        self._most_share = most_share
        self._evaluator = evaluator
        self._running: dict[Future[TurnEnd | None], _Running] = {}
        pool.begin(Findings(incumbent.best, incumbent.best_score, incumbent.lower_bound))

    def search(self, turns: Iterable[Turn]) -> Status:
        """Take the turns; how the search ended. Raises SearchStopped when the evaluator does."""
        try:
            for turn in turns:
                status = self._wait_for_room()
                if status is not None:
                    return status
                if self._incumbent.left_s < LEAST_S or self._is_idle:
                    break
                self._submit(turn)
            while self._running:
                status = self._collect()
                if status is not None:
                    return status
            return Status.FEASIBLE if self._is_idle or self._incumbent.left_s >= LEAST_S else Status.TIME_LIMIT
        finally:
            self._end()

    @property
    def _is_idle(self) -> bool:
        return self._idle >= self._most_idle and not np.isfinite(self._incumbent.left_s)

    def _submit(self, turn: Turn) -> None:
        incumbent = self._incumbent
        known = () if incumbent.best is None else (incumbent.best,)
        seconds = max(min(turn.share, self._most_share) * incumbent.left_s, LEAST_S)
        limits = replace(
            incumbent.limits,
            seconds=min(seconds, incumbent.left_s),
            num_workers=1,
            seed=incumbent.limits.seed + turn.round,
            known=known,
            is_again=False,
            pool=None,
        )
        share = incumbent.evaluations_left / self._pool.num_workers
        job = TurnJob(turn, incumbent.problem, self._evaluator, limits, max(share, 1.0))
        self._running[self._pool.submit(job)] = _Running(turn, incumbent.elapsed_s, incumbent.best_score)

    def _wait_for_room(self) -> Status | None:
        """Wait until a worker is free; how the search ended, if it did."""
        while len(self._running) >= self._pool.num_workers:
            status = self._collect()
            if status is not None:
                return status
        return None

    def _collect(self) -> Status | None:
        """Wait for a turn to end, or for news of the others; how the search ended, if it did."""
        done = wait(self._running, LOOK_EVERY_S, FIRST_COMPLETED).done
        self._take_over()
        ended = [self._ended(future, self._running.pop(future)) for future in done]
        self._incumbent.check()
        proofs = [status for status in ended if status in (Status.OPTIMAL, Status.INFEASIBLE)]
        return Status.OPTIMAL if is_proven(self._pool.findings) else next(iter(proofs), None)

    def _take_over(self) -> None:
        """Have the best plan of any worker evaluated here, whatever the budget, and keep the bound."""
        found = self._pool.findings
        if found.plan is not None and found.value < self._incumbent.best_score:
            self._incumbent.report([found.plan])
        if found.bound is not None and found.bound != self._incumbent.lower_bound:
            self._incumbent.prove(found.bound)

    def _ended(self, future: Future[TurnEnd | None], running: _Running) -> Status | None:
        """Take note of the end of a turn; its status, None where it has none."""
        incumbent, turn = self._incumbent, running.turn
        try:
            end = future.result()
        except ExecutionError as error:
            end = TurnEnd(failure=str(error))
        if end is None:  # not for this problem
            return None
        incumbent.spend(end.num_plans)
        if end.plan is not None:
            incumbent.report([end.plan])
        if end.bound is not None:
            incumbent.prove(end.bound)
            self._pool.exchange(Findings(bound=end.bound))
        after = incumbent.best_score
        self._pool.exchange(Findings(incumbent.best, after))
        if turn.round:
            self._idle = 0 if after < running.before * (1 - LEAST_GAIN) else self._idle + 1
        found = Contribution(
            turn.method, running.began_s, incumbent.elapsed_s, running.before, after, end.bound, end.status, end.failure
        )
        incumbent.contributions.append(found)
        return end.status

    def _end(self) -> None:
        """Have the workers end, and keep what they have found."""
        self._pool.exchange(Findings(is_over=True))
        done = wait(self._running, GRACE_S).done
        self._take_over()
        for future, running in self._running.items():
            if future in done:
                self._ended(future, running)
            else:
                future.cancel()
        self._running.clear()
        self._pool.rest()  # what is measured next has the machine to itself
