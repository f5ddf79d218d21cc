"""Measured evaluation on several boxes: every plan beside a reference, on whatever box is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace

import numpy as np

from hsdag.boxes.boxes import Boxes
from hsdag.evaluators.base import Evaluator, Score
from hsdag.evaluators.bench import Relative
from hsdag.evaluators.measured import MeasuredEvaluator
from hsdag.evaluators.recording import Event
from hsdag.fleet.pool import Host
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.problems.plan import Plan

LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class _Reference:
    """What candidates are compared with on every box, and its value as measured on this machine."""

    candidate: Candidate
    value: float


@dataclass(frozen=True)
class _Running:
    """A plan, by its index, that a box measures."""

    host: Host
    index: int
    reference: _Reference


class BoxesEvaluator(Evaluator):
    """Values of plans, several at a time: one on this machine, which is a box as well, and one on each other box.

    The reference is the fastest of what runs on one device alone, or where nothing does the first plan that runs. This
    machine measures it. All else is measured beside it, by ratio, and the value is that ratio times the reference's:
    absolute figures of two boxes never meet. ``past`` are events of an earlier part of the search.
    """

    def __init__(
        self,
        inner: MeasuredEvaluator,
        boxes: Boxes,
        past: Sequence[Event] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.takes_order = inner.takes_order
        self._inner, self._boxes, self._should_stop = inner, boxes, should_stop
        self._reference: _Reference | None = None
        self._best = np.inf
        for event in past:
            if not event.plan.is_split:
                self._note(event.plan, event.score)
            self._best = min(self._best, event.score.value)

    @property
    def num_at_once(self) -> int:
        """As many as there are boxes."""
        return 1 + len(self._boxes.hosts)

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """One score per plan, with the box that it comes from; what a box does not measure another one does."""
        self._boxes.begin()
        found: dict[int, Score] = {}
        waiting, running = deque(range(len(plans))), dict[Future[Relative], _Running]()
        while waiting or running:
            self._hand_out(plans, waiting, running)
            if waiting:
                index = waiting.popleft()
                found[index] = replace(self._here(plans[index]), box=self._boxes.here)
            elif not wait(running, LOOK_EVERY_S, FIRST_COMPLETED).done and self._should_stop():
                self._boxes.abandon()
            for future in [future for future in running if future.done()]:
                run = running.pop(future)
                relative = self._boxes.answer(run.host, future)
                if relative is None:
                    waiting.append(run.index)
                else:
                    found[run.index] = replace(_score(relative, run.reference), box=run.host.name)
            self._best = min([self._best, *(score.value for score in found.values())])
        return [found[index] for index in range(len(plans))]

    def close(self) -> None:
        """Forget the reference in the measuring process of this machine."""
        self._inner.bench.close()

    def _hand_out(self, plans: Sequence[Plan], waiting: deque[int], running: dict[Future[Relative], _Running]) -> None:
        """Give each free box a plan, the last ones first; one of them is left to this machine."""
        reference = self._reference
        if reference is None or self._should_stop():
            return
        busy = [run.host for run in running.values()]
        for host in [host for host in self._boxes.hosts if host not in busy]:
            index = next((i for i in reversed(waiting) if self._may_go(plans[i])), None)
            if index is None or len(waiting) < 2:
                return
            waiting.remove(index)
            candidate, best_ratio = self._inner.candidate(plans[index]), self._best / reference.value
            future = self._boxes.measure(host, candidate, reference.candidate, best_ratio)
            running[future] = _Running(host, index, reference)

    def _may_go(self, plan: Plan) -> bool:
        return plan.is_split and self._inner.problem.is_legal(plan.placement)

    def _here(self, plan: Plan) -> Score:
        """A plan measured on this machine: what may be the reference by itself, all else beside it."""
        reference = self._reference
        if reference is not None and self._may_go(plan):
            candidate, best_ratio = self._inner.candidate(plan), self._best / reference.value
            relative = self._inner.bench.beside(candidate, reference.candidate, best_ratio)
            if not relative.is_unfit:
                return _score(relative, reference)
        (score,) = self._inner.evaluate([plan])
        if not plan.is_split or reference is None:
            self._note(plan, score)
        return score

    def _note(self, plan: Plan, score: Score) -> None:
        """Take as the reference what this machine has measured, if it is the fastest."""
        if score.failure is None and (self._reference is None or score.value < self._reference.value):
            self._reference = _Reference(self._inner.candidate(plan), score.value)


def _score(relative: Relative, reference: _Reference) -> Score:
    if relative.failure is not None:
        return Score.failed(relative.failure)
    return Score(relative.ratio * reference.value)
