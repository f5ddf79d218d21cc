"""Steps before a search: the profile of the model, where its units may run, and the shards that are worth measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hsdag.base.errors import DeviceError
from hsdag.base.processes import CandidateFailed
from hsdag.commands.place.kinds import SHARDS, Kinds
from hsdag.commands.place.limits import within_difference
from hsdag.commands.place.pace import Deadline
from hsdag.commands.place.session import Session
from hsdag.commands.place.shards import ShardProposals, named_ways
from hsdag.commands.place.verifying import Verifier
from hsdag.commands.place.wanted import Wanted
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.effort import NO_TIME, Effort
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.driver import Watcher
from hsdag.search.options import PlaceOptions

_TRIAL = "trial"
"""Key of a candidate in the runner whose outputs are compared."""

LOST = "the model is not divided: the best way to do so took"
"""Words before the ratio in the note on shards that lost."""

TIMED = "times as long as the fastest device when both were timed"
"""Words after the ratio in the note on shards that lost."""

DIFFERENCE_SHARE = 0.2
"""Largest share of the budget to measure which units may run where within the largest difference of outputs."""


def profiled(
    session: Session, options: PlaceOptions, watcher: Watcher, wanted: Wanted, spent_s: float
) -> tuple[ModelProfile | None, str | None]:
    """Profile the model, or return why it has no profile, with a note, if the options do not need one.

    Args:
        wanted: Collects what there was no time for.
        spent_s: Seconds of the budget that have passed.

    Raises DeviceError if the model cannot be profiled and the options need that.
    """

    def heed(note: str) -> None:
        """Pass on a note of the profiler, and add to ``wanted`` if it had too little time."""
        if note.startswith(NO_TIME):
            wanted.add("measure what happens between devices well")
        watcher.note(note)

    effort = Effort.within(options.budget_s, len(session.devices.placed))
    try:
        profile = session.profile(
            ProfileCache(None) if options.fresh else None,
            replace(effort, total_s=min(effort.total_s, 0.4 * (options.budget_s - spent_s))),
            watcher.on_phase,
            watcher.should_stop,
            on_note=heed,
            side_by_side=options.executor != "hetero" or options.objective.is_steady,
        )
    except DeviceError as error:
        needs_one = options.reward is not None or options.memory_bytes or options.objective.counts_memory
        stopped = watcher.should_stop()
        if needs_one and not stopped:
            raise
        unprofiled = str(error) if stopped else f"{error}; every placement was measured instead"
        watcher.note(unprofiled)
        return None, unprofiled
    return profile, None


def within_largest_difference(
    session: Session, options: PlaceOptions, watcher: Watcher, problem: Problem, verifier: Verifier
) -> Problem:
    """Restrict a problem to choices that were measured to keep the largest difference of outputs."""
    watcher.on_phase("measuring how far the outputs of devices differ")
    deadline = Deadline(time.monotonic() + DIFFERENCE_SHARE * options.budget_s, watcher.should_stop)

    def difference(plan: Plan) -> float:
        try:
            session.runner.open(_TRIAL, session.placed(problem, plan, options.search_executor))
            distance = verifier.compared(_TRIAL).difference
            session.runner.close(_TRIAL)
        except CandidateFailed:
            return np.inf
        relative = None if distance is None else distance["max_relative"]
        return np.inf if relative is None else relative

    restricted, sentences = within_difference(problem, verifier.check.least, difference, deadline.is_over)
    for sentence in sentences:
        watcher.note(sentence)
    return restricted


def with_timed(
    ways: Sequence[Sharding], whole_s: float, kinds: Kinds, note: Callable[[str], None], *, gains: bool
) -> list[Sharding]:
    """Add the sharding that was timed before the search, unless it has lost.

    Returns nothing, with a note, if it has clearly lost and the others are not predicted to gain anything either.

    Args:
        whole_s: Predicted seconds of the model on the fastest device.
        gains: Whether one of ``ways`` is predicted to gain something.
    """
    early, times = kinds.sharding, kinds.times.get(SHARDS)
    if early is None or times is None:
        return [*ways]
    if kinds.has_lost(SHARDS) and not gains:
        note(f"{LOST} {times:.2f} {TIMED}")
        return []
    if kinds.is_near(SHARDS) and early not in ways:
        at = int(gains)
        return [*ways[:at], replace(early, predicted_s=times * whole_s), *ways[at:]]
    return [*ways]


def measured_shardings(
    shardings: Mapping[str, Sharding],
    proposals: ShardProposals,
    kinds: Kinds,
    watcher: Watcher,
    limit_s: float,
    opening_s: Callable[[Candidate], float],
) -> dict[str, Sharding]:
    """Return the shardings that win when measured, or the one that did well before the search, by their names.

    Adds a note if none is left.

    Args:
        limit_s: Seconds to measure.
        opening_s: Estimates the seconds to open a candidate.
    """
    watcher.on_phase("measuring shards")
    measured = proposals.measured(list(shardings.values()), limit_s, watcher.should_stop, opening_s)
    kept = named_ways(kinds.believed(measured))
    if not kept and (times := proposals.best_times) is not None:
        watcher.note(f"{LOST} {times:.2f} {TIMED}")
    return kept
