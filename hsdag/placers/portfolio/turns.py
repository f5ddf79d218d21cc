"""Turns of a portfolio: which method comes when, for how long; here, or on a worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.evaluators.recording import Budget, RecordingEvaluator
from hsdag.fleet.pool import Exchange, Findings, Job
from hsdag.ir.errors import OptionError
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import LEAST_GAIN, Limits, Status
from hsdag.placers.registry import find_method, make_placer
from hsdag.runtime.problems.bounds import Bound
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem

EXCHANGE_S = 0.25
"""How often a turn on a worker tells the others what it has found."""


@dataclass(frozen=True)
class Turn:
    """A method's turn: the share of what is left of the budget that it may use, which seed of how many, and changes of
    its hyper-parameters, or all of them."""

    method: str
    share: float
    round: int = 0
    changes: Mapping[str, str] = field(default_factory=dict)
    options: Any = None

    def placer(self, problem: Problem) -> Placer[Any]:
        """The method. Raises OptionError where it cannot search the problem."""
        if self.options is not None:
            placer = find_method(self.method)(self.options)
        else:
            placer = make_placer(self.method, changes=self.changes, is_cheap=True)
        placer.check(problem)
        return placer


@dataclass(frozen=True)
class TurnEnd:
    """How a turn ended: its status, or why it has none; its bound, its best plan, and the plans that it simulated."""

    status: Status | None = None
    failure: str | None = None
    bound: Bound | None = None
    plan: Plan | None = None
    num_plans: int = 0


@dataclass(frozen=True, eq=False)
class TurnJob(Job[TurnEnd | None]):
    """A turn on a worker; None where the method cannot search the problem."""

    turn: Turn
    problem: Problem
    evaluator: Evaluator
    limits: Limits
    evaluations: float

    def run(self, exchange: Exchange) -> TurnEnd | None:
        """Search, and tell others of better plans and bounds; ends when no better plan can be found."""
        problem, limits = self.problem, self.limits
        recorder = recorded(self.evaluator, limits, self.evaluations, exchange)
        try:
            result = self.turn.placer(problem).search(problem, recorder, limits)
        except OptionError:  # not for this problem
            return None
        except Exception as error:  # noqa: BLE001 - the other turns go on
            best = next(iter(recorder.best()), None)
            plan = None if best is None else best.plan
            return TurnEnd(None, f"{type(error).__name__}: {error}", recorder.bound, plan, recorder.num_evaluations)
        return TurnEnd(result.status, None, result.lower_bound, result.plan, recorder.num_evaluations)


def recorded(evaluator: Evaluator, limits: Limits, evaluations: float, exchange: Exchange) -> RecordingEvaluator:
    """The evaluator with a budget, whose findings are exchanged; a search through it ends when its proof is there."""
    told_s = time.monotonic()

    def is_over() -> bool:
        nonlocal told_s
        if time.monotonic() - told_s < EXCHANGE_S:
            return False
        best, told_s = next(iter(recorder.best()), None), time.monotonic()
        own = Findings(bound=recorder.bound) if best is None else Findings(best.plan, best.score.value, recorder.bound)
        known = exchange(own)
        return known.is_over or is_proven(known)

    recorder = RecordingEvaluator(evaluator, Budget(limits.seconds, evaluations), should_stop=is_over)
    return recorder


def is_proven(findings: Findings) -> bool:
    """Whether the best plan meets the bound, but for rounding."""
    bound = findings.bound
    return bound is not None and np.isfinite(findings.value) and findings.value <= bound.value_s * (1 + LEAST_GAIN)
