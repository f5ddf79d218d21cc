"""Restarts: one method with several seeds, side by side on workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hsdag.evaluators.base import Checkpoint, Evaluator
from hsdag.fleet.pool import Pool
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import Incumbent, Limits, Result
from hsdag.placers.portfolio.side_by_side import SideBySide
from hsdag.placers.portfolio.turns import Turn
from hsdag.runtime.problems.problem import Problem

ROLLOUT_SHARE, LEAST_ROLLOUT_S = 0.25, 5.0
"""Of the budget of a learned method that measures, what workers get to search in simulation first; and the seconds that
this has to be, since they need some of them to start."""


def search_with_restarts(
    placer: Placer[Any], problem: Problem, evaluator: Evaluator, limits: Limits, checkpoint: Checkpoint | None = None
) -> Result:
    """What ``placer.search`` does; a seeded method searches once on each worker, with seeds from the given one on.

    All hear of the largest bound. A learned method that measures searches here as it does without workers, from the
    best plan that they have found in simulation before; they rest while it measures. Raises as ``placer.search`` does.
    """
    pool, copy = limits.pool, evaluator.for_workers
    if pool is None or copy is None or not placer.is_seeded:
        return placer.search(problem, evaluator, limits, checkpoint)
    placer.check(problem)
    if not (placer.learns and evaluator.measures):
        return _restarted(placer, Incumbent(problem, evaluator, limits, checkpoint), copy, pool, 0)
    rollouts_s = ROLLOUT_SHARE * limits.seconds
    is_resumed = checkpoint is not None and checkpoint.load() is not None
    if rollouts_s < LEAST_ROLLOUT_S or is_resumed:
        return placer.search(problem, evaluator, limits, checkpoint)
    first = Incumbent(problem, evaluator, replace(limits, seconds=rollouts_s))
    before = _restarted(placer, first, copy, pool, 1)
    known = limits.known if before.plan is None else (*limits.known, before.plan)
    limits = replace(limits, seconds=limits.seconds - before.spent.seconds, known=known)
    result = placer.search(problem, evaluator, limits, checkpoint)
    return replace(result, contributions=before.contributions + result.contributions)


def _restarted(placer: Placer[Any], incumbent: Incumbent, copy: Evaluator, pool: Pool, first: int) -> Result:
    """The best of searches with as many seeds as there are workers."""
    turns = [Turn(placer.name, 1.0, first + k, options=placer.options) for k in range(pool.num_workers)]
    return incumbent.concluded(lambda each: SideBySide(each, pool, copy, float("inf"), 1.0).search(turns))
