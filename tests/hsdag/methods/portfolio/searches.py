"""Searches of portfolios and restarts over random problems, for tests here and on clusters."""

from __future__ import annotations

import numpy as np

from hsdag.methods.incumbent import Limits, Result
from hsdag.methods.portfolio.turns import search_with_restarts
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.workers.pool import Pool


def random_problem(num_ops: int, num_devices: int, seed: int = 0) -> ScheduleProblem:
    rng = np.random.default_rng(seed)
    edges = [(int(rng.integers(max(v - 6, 0), v)), v) for v in range(1, num_ops) for _ in range(2)]
    return ScheduleProblem.from_arrays(
        rng.integers(1, 9, (num_ops, num_devices)).astype(float),
        sorted(set(edges)),
        output_bytes=rng.integers(1, 6, num_ops),
        link_bandwidth_bytes_per_s=2.0,
    )


def searched(
    problem: ScheduleProblem,
    method: str,
    pool: Pool | None,
    seconds: float = np.inf,
    seed: int = 0,
    evaluations: float = np.inf,
) -> tuple[Result, RecordingEvaluator]:
    units = problem_of(problem)
    inner = ScheduleEvaluator.of(units)
    recorder = RecordingEvaluator(inner, Budget(seconds, evaluations))
    limits = Limits(seconds, num_workers=1, seed=seed, pool=pool)
    return search_with_restarts(make_placer(method, is_cheap=True), units, recorder, limits), recorder
