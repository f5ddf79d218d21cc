"""Held: which units may run on devices of low precision so that outputs stay close to a reference's.

Legend: U placement units, D devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from hsdag.ir.graph import BoolArray, FloatArray, IntArray
from hsdag.runtime.problems.pins import restricted
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem

MARGIN = 0.8
"""Share of the largest difference that is admitted: other placements of the same units round at other places."""

SMALLEST_SHARE = 1 / 16
"""Of the units that are in question: fewer are not tried by themselves."""


def held_to(
    problem: Problem, limit: float, difference: Callable[[Plan], float], is_over: Callable[[], bool] = lambda: False
) -> tuple[Problem, tuple[str, ...]]:
    """The problem with what may run where, and a sentence on each device that does not keep the limit by itself.

    ``difference`` runs a plan. Where a device differs by more than ``limit``, the units that others may take stay
    there, but for those that were measured to differ by less, all of them together: stretches of the model are tried,
    the longest first, and those that differ too much are halved until ``is_over``. So every method searches among plans
    that mostly keep the limit, without knowing of it. Where no device keeps it by itself, nothing is known, and every
    plan has to be judged by its own outputs.
    """
    alone = [problem.nearest(np.full(problem.num_units, d)) for d in range(problem.num_devices)]
    apart = np.array([difference(plan) for plan in alone])
    close: BoolArray = np.asarray(apart <= limit, dtype=np.bool_)
    if close.all() or not close.any():
        return problem, ()
    work = _work(problem)
    has_close: BoolArray = np.asarray(problem.supported[:, close].any(axis=1), dtype=np.bool_)
    ranked = np.where(problem.supported & close[None, :], work, np.inf)
    placement = np.where(has_close, ranked.argmin(axis=1), problem.supported.argmax(axis=1))
    allowed = problem.supported & (close[None, :] | ~has_close[:, None])
    sentences = []
    for d in np.flatnonzero(~close).tolist():
        movable = problem.units.graph.topological_order
        movable = movable[(problem.supported[:, d] & has_close)[movable]]
        admitted = _admitted(placement, movable, d, work[:, d], MARGIN * limit, difference, is_over)
        placement[admitted] = d
        allowed[admitted, d] = True
        how = f"differ by {apart[d]:.2g}" if np.isfinite(apart[d]) else "are not comparable"
        sentences.append(
            f"with the whole model on {problem.devices[d]} outputs {how}, and {limit:g} is allowed; "
            f"{len(admitted)} of {len(movable)} units may run there"
        )
    return restricted(problem, allowed), tuple(sentences)


def _admitted(
    placement: IntArray,
    movable: IntArray,
    device: int,
    work: FloatArray,
    limit: float,
    difference: Callable[[Plan], float],
    is_over: Callable[[], bool],
) -> IntArray:
    """Units among ``movable``, in topological order, that keep the limit together when they leave ``placement`` [U]."""
    found = np.empty(0, dtype=np.int64)
    waiting = deque(_halves(movable, work))
    while waiting and not is_over():
        stretch = waiting.popleft()
        trial = placement.copy()
        trial[np.concatenate([found, stretch])] = device
        if difference(Plan(trial)) <= limit:
            found = np.concatenate([found, stretch])
        elif len(stretch) > max(SMALLEST_SHARE * len(movable), 1):
            waiting.extend(_halves(stretch, work))
    return found


def _halves(units: IntArray, work: FloatArray) -> list[IntArray]:
    """Two parts of a stretch of about equal work, none of them empty; nothing of nothing."""
    if len(units) < 2:
        return [units] if len(units) else []
    done = np.cumsum(work[units])
    cut = min(max(int(np.searchsorted(done, done[-1] / 2)), 1), len(units) - 1)
    return [units[:cut], units[cut:]]


def _work(problem: Problem) -> FloatArray:
    """[U, D] what units take, in seconds where that is known, else in FLOPs."""
    if problem.costs is not None:
        return np.nan_to_num(problem.costs.time_s)
    return np.repeat(problem.units.graph.flops[:, None], problem.num_devices, axis=1)
