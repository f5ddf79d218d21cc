"""Search parts of a problem by themselves, within the budget of the whole search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.exact.base import TOLERANCE
from hsdag.methods.incumbent import Incumbent
from hsdag.methods.memory_repair import repaired
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.simulator.simulation import Simulation
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator

PARTS = {"without": "repeated,cpsat"}
"""Hyper-parameters of ``auto`` for a block or its positions: one of the methods left out would look for blocks."""
CANDIDATES = 200
"""Number of plans of a part that are returned."""


def considered(incumbent: Incumbent, placement: IntArray, order: IntArray) -> None:
    """Evaluate a placement [U] with ranks [U], and the repaired placement if a device's memory is exceeded."""
    if not np.isfinite(incumbent.consider(placement, order)):
        incumbent.consider(repaired(incumbent.costs, placement, incumbent.problem.semantics), order)


def searched_apart(
    incumbent: Incumbent,
    part: Problem,
    method: str,
    seconds: float,
    evaluations: float,
    least_s: float = 0.0,
    without: Mapping[str, str] = PARTS,
) -> tuple[Iterator[Simulation], float]:
    """Search a part of the graph, and return runs of its best plans, the best first, and its lower bound in seconds.

    A simulated plan counts as a fraction of an evaluation, the part's share of all units. Raises SearchStopped if the
    whole search is stopped.

    Args:
        evaluations: Limit of evaluations, counted as those of the whole search.
        least_s: Known lower bound in seconds; the search ends when a plan meets it.
        without: Hyper-parameters of the method if it is ``auto``.
    """
    share = part.num_units / incumbent.problem.num_units
    evaluator = ScheduleEvaluator.of(part)

    def is_over() -> bool:
        incumbent.check()
        return any(event.score.value <= least_s * (1 + TOLERANCE) for event in recorder.best())

    recorder = RecordingEvaluator(evaluator, Budget(evaluations=evaluations / share), should_stop=is_over)
    limits = replace(incumbent.limits, seconds=seconds, known=(), is_again=False, pool=None)
    try:
        placer = make_placer(method, changes=without if method == "auto" else {}, is_cheap=True)
        bound = placer.search(part, recorder, limits).lower_bound
    finally:
        incumbent.report(count=int(recorder.num_evaluations * share))
    runs = (evaluator.run(event.plan) for event in recorder.best(CANDIDATES))
    return runs, 0.0 if bound is None else bound.value
