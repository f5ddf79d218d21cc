"""PipelinePlacer: contiguous stages over the devices, balanced or in turn; see docs/exact.md.

Legend: U placement units, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from hsdag.evaluators.memory import MemoryCheck
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.base import NoOptions, Placer
from hsdag.placers.cuts.candidate_round import evaluate_each
from hsdag.placers.cuts.stage_partition import Line, balanced_stages, quickest_stages
from hsdag.placers.incumbent import Incumbent, Status
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Links, Semantics

MAX_CANDIDATES = 7
"""Different placements that are evaluated at most: each may be measured."""

UNCERTAIN = (1.0, 2.0, 0.5, 4.0, 0.0)
"""Factors of transfers and launches where their costs are estimates."""

MAX_TIGHTENINGS = 20
"""Rounds in which a stage gets less room for weights because its results need more."""


class PipelinePlacer(Placer[NoOptions]):
    """Contiguous stages in topological order: the busiest as little busy as can be, or for one inference at a time
    those that take least in turn, which memory alone forces onto several devices that are alike.

    The same problem gives the same placements.
    """

    name = "pipeline"
    objectives = ("latency", "throughput")

    def _search(self, incumbent: Incumbent) -> Status:
        nothing = "method pipeline found no stages that fit into memory; try --method mincut"
        evaluate_each(stages(incumbent.problem), incumbent, MAX_CANDIDATES, nothing)
        return Status.FEASIBLE


def stages(units: Problem) -> Iterator[IntArray]:
    """Placements [U] that fit into memory: the best single device, then stages.

    Stages come under the links as they are charged, and at other prices.
    """
    problem, semantics = units.costs, units.semantics
    assert problem is not None
    judge = MemoryCheck(problem, semantics)
    by_load = np.argsort(problem.time_s.sum(axis=0), kind="stable")  # not a number where an op is not supported
    alone = (np.full(problem.num_ops, d) for d in by_load if problem.supported[:, d].all())
    yield from itertools.islice((each for each in alone if judge.fits(each)), 1)
    is_steady = units.objective.is_steady
    partition = balanced_stages if is_steady else quickest_stages
    for boundary in _boundaries(semantics) if is_steady else UNCERTAIN:
        for slowest in (True, False) if boundary == 1.0 else (True,):
            placement = fitting_stages(problem, judge, partition, boundary=boundary, slowest=slowest)
            if placement is not None:
                yield placement


def _boundaries(semantics: Semantics) -> tuple[float, ...]:
    """What transfers and launches count, as factors.

    Independent links never fill up; blocking ones occupy devices and others have a load of their own, so that
    stages with and without them are tried; HETERO's boundaries occupy the receiver, and are uncertain.
    """
    if semantics.execution is Execution.SEQUENTIAL:
        return UNCERTAIN
    return (0.0,) if semantics.links is Links.INDEPENDENT else (1.0, 0.0, 2.0, 0.5, 4.0)


def fitting_stages(
    problem: ScheduleProblem,
    judge: MemoryCheck,
    partition: Callable[[Line, FloatArray], IntArray | None] = balanced_stages,
    *,
    boundary: float,
    slowest: bool = True,
) -> IntArray | None:
    """Stages [N] that fit into memory, results included; None where none were found.

    Weights are limited first. Where results do not fit beside them, the weights of that device get so much less
    room; where that leads nowhere, all results are taken to be held at once.
    """
    line = Line.of(problem, boundary=boundary, slowest=slowest)
    room = problem.memory_bytes.copy()
    for _ in range(MAX_TIGHTENINGS):
        placement = partition(line, room)
        if placement is None:
            break
        if judge.fits(placement):
            return placement
        weights = np.bincount(placement, problem.weight_bytes, problem.num_devices)
        excess = judge.peak_bytes(placement) - problem.memory_bytes
        full = judge.overfull(placement)
        room[full] = np.minimum(room, weights - excess)[full]
        if (room < 0).any():
            break
    held_bytes = judge.held_bytes[problem.topological_order]
    placement = partition(replace(line, weight_bytes=held_bytes), problem.memory_bytes)
    return placement if placement is not None and judge.fits(placement) else None
