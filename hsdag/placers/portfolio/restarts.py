"""Restarts: one method with several seeds, side by side on workers."""

from __future__ import annotations

from typing import Any

from hsdag.evaluators.base import Checkpoint, Evaluator
from hsdag.placers.base import Placer
from hsdag.placers.incumbent import Incumbent, Limits, Result
from hsdag.placers.portfolio.side_by_side import SideBySide
from hsdag.placers.portfolio.turns import Turn
from hsdag.runtime.problems.problem import Problem


def search_with_restarts(
    placer: Placer[Any], problem: Problem, evaluator: Evaluator, limits: Limits, checkpoint: Checkpoint | None = None
) -> Result:
    """What ``placer.search`` does; a seeded method searches once on each worker, with seeds from the given one on.

    All hear of the largest bound. Raises as ``placer.search`` does.
    """
    pool, copy = limits.pool, evaluator.for_workers
    if pool is None or copy is None or not placer.is_seeded:
        return placer.search(problem, evaluator, limits, checkpoint)
    placer.check(problem)
    turns = [Turn(placer.name, 1.0, k, options=placer.options) for k in range(pool.num_workers)]
    return Incumbent(problem, evaluator, limits, checkpoint).concluded(
        lambda incumbent: SideBySide(incumbent, pool, copy, float("inf"), 1.0).search(turns)
    )
