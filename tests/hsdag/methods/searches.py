"""Searches of placers under a recorder, for tests of several families."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.incumbent import Limits, Result, Status
from hsdag.methods.registry import make_placer
from hsdag.methods.turns import search_with_restarts
from hsdag.runtime.objectives import LATENCY, Objective
from hsdag.runtime.problem.bounds.makespan import lower_bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.evaluators.recording import Budget, Event, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.workers.pool import Pool

A_FEW = 60
T = TypeVar("T")


def not_none(value: T | None) -> T:
    """A value that has to be there."""
    assert value is not None
    return value


def random_problem(seed: int, *, memory: bool = False) -> ScheduleProblem:
    """Up to 12 ops on up to 4 devices, some unsupported, labelled as shards; any device with memory holds most."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 13)), int(rng.integers(1, 5))
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < rng.choice([0.0, 0.1, 0.4])]
    times = rng.integers(0, 5, (n, d)).astype(float) if rng.random() < 0.3 else rng.random((n, d))
    times[rng.random((n, d)) < 0.15] = np.nan
    times[np.isnan(times).all(axis=1), 0] = 1.0
    meta_ops = tuple(f"m{v // 3}" if v // 3 != 1 else "" for v in range(n))
    weights, outputs = rng.random(n), rng.random(n)
    return ScheduleProblem.from_arrays(
        times,
        edges,
        output_bytes=outputs,
        weight_bytes=weights,
        memory_bytes=float(0.8 * (weights + outputs).sum() + (weights + outputs).max()) if memory else np.inf,
        link_latency_s=0.1,
        link_bandwidth_bytes_per_s=2.0,
        launch_s=0.2,
        op_overhead_s=float(rng.choice([0.0, 0.1])),
        labels=OpLabels(("Op",) * n, ("",) * n, meta_ops, tuple(rng.choice(["shard", "reduce"], n)), ("",) * n),
    )


def recorded(
    problem: ScheduleProblem,
    method: str,
    semantics: Semantics | None = None,
    objective: Objective = LATENCY,
    *,
    most: float = A_FEW,
    seed: int = 0,
) -> tuple[list[Event], IntArray | None]:
    """All evaluations of a search, and what it returned if it came to its end; plans are those of ops."""
    semantics = semantics or Semantics()
    units = problem_of(problem, objective, semantics)
    inner = ScheduleEvaluator.of(units)
    evaluator = RecordingEvaluator(inner, Budget(evaluations=most))
    result = make_placer(method).search(units, evaluator, Limits(seed=seed))
    returned = None
    if result.plan is not None and result.status is not Status.TIME_LIMIT:
        returned = units.expand(result.plan.placement)
    plans = [Plan(units.expand(e.plan.placement), inner.priority(e.plan)) for e in evaluator.events]
    return [replace(event, plan=plan) for event, plan in zip(evaluator.events, plans, strict=True)], returned


def check_search(method: str, seed: int, semantics: Semantics, objective: Objective, *, memory: bool) -> None:
    """Plans are legal, and none is below the bound; the first has every op where it is fastest, where that fits."""
    problem = random_problem(seed, memory=memory)
    events, returned = recorded(problem, method, semantics, objective)
    placements = [event.plan.placement for event in events]
    runs = [simulate(problem, e.plan.placement, semantics, e.plan.priority) for e in events]
    fits = [bool((run.peak_memory_bytes <= problem.memory_bytes).all()) for run in runs]
    assert all(problem.supported[np.arange(problem.num_ops), placement].all() for placement in placements)
    assert [event.score.failure is None for event in events] == fits
    assert any(fits) or not (problem.num_devices > 1 and problem.supported.all())
    bound_s = lower_bound(objective, problem, semantics.execution).value
    assert min(event.score.value for event in events) >= bound_s * (1 - 1e-12)
    assert returned is None or any(np.array_equal(placement, returned) for placement in placements)
    fastest = np.nanargmin(problem.time_s, axis=1)
    if (simulate(problem, fastest, semantics).peak_memory_bytes <= problem.memory_bytes).all():
        assert np.array_equal(placements[0], fastest)


def heard(problem: ScheduleProblem, most: float, semantics: Semantics) -> RecordingEvaluator:
    """Ends the search when it is asked for the time after ``most`` whether to."""
    asked = itertools.count()
    return RecordingEvaluator(ScheduleEvaluator(problem, semantics), should_stop=lambda: next(asked) >= most)


def tight(num_ops: int = 16, num_devices: int = 3) -> ScheduleProblem:
    """All weights fit on no device, and one device is the fastest for every op."""
    rng = np.random.default_rng(0)
    return ScheduleProblem.from_arrays(
        rng.uniform(1.0, 2.0, (num_ops, num_devices)) * (1 + np.arange(num_devices)),
        [(u, v) for v in range(num_ops) for u in range(v) if rng.random() < 0.1],
        output_bytes=0.1,
        weight_bytes=rng.uniform(1.0, 2.0, num_ops),
        memory_bytes=1.6 * num_ops / (num_devices - 1),
        link_latency_s=0.1,
    )


def reading_near(num_ops: int, num_devices: int, seed: int = 0) -> ScheduleProblem:
    """Ops that read up to two of the six before them."""
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
    """A search by as many seeds or turns as a pool has workers."""
    units = problem_of(problem)
    inner = ScheduleEvaluator.of(units)
    recorder = RecordingEvaluator(inner, Budget(seconds, evaluations))
    limits = Limits(seconds, num_workers=1, seed=seed, pool=pool)
    return search_with_restarts(make_placer(method, is_cheap=True), units, recorder, limits), recorder
