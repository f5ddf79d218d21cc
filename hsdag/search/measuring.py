"""How a model is profiled and placements are measured."""

from __future__ import annotations

from hsdag.evaluators.measured import MeasuredEvaluator
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.profiler import Effort
from hsdag.runtime.problems.problem import Problem
from hsdag.search.driver import Watcher
from hsdag.search.options import PlaceOptions
from hsdag.search.session import Session
from hsdag.search.verifying import Verifier


def measured_profile(session: Session, options: PlaceOptions, watcher: Watcher) -> ModelProfile:
    """The profile of a session's model, as the budget allows. Raises DeviceError as ``Session.profile`` does."""
    return session.profile(
        ProfileCache(None) if options.fresh else None,
        Effort.within(options.budget_s, len(session.devices.placed)),
        watcher.on_phase,
        watcher.should_stop,
        side_by_side=options.executor != "hetero" or options.objective.is_steady,
    )


def measured_evaluator(
    session: Session, problem: Problem, options: PlaceOptions, verifier: Verifier
) -> MeasuredEvaluator:
    """Measures on this machine; outputs are compared before, where there is a largest difference."""
    return MeasuredEvaluator(
        problem,
        session.devices.placed,
        session.runner,
        options.chosen_preset.measurement,
        options.executor,
        objection=(lambda key: verifier.compared(key).reason) if verifier.is_limit else None,
    )
