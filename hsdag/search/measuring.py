"""How a model is profiled and placements are measured."""

from __future__ import annotations

from functools import partial
from typing import cast

from hsdag.boxes.boxes import Boxes, find_boxes
from hsdag.boxes.jobs import Describe
from hsdag.boxes.site import Packed, Site
from hsdag.evaluators.measured import MeasuredEvaluator
from hsdag.fleet.pool import Pool
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.messages import WorkerSetup
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.profiler import Effort
from hsdag.runtime.problems.problem import Problem
from hsdag.search.driver import Watcher
from hsdag.search.options import PlaceOptions
from hsdag.search.session import Session
from hsdag.search.verifying import Verifier, check_of, judging


def measured_profile(session: Session, options: PlaceOptions, watcher: Watcher) -> ModelProfile:
    """The profile of a session's model, as the budget allows.

    Raises DeviceError as ``Session.profile`` does.
    """
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


def boxes_for(
    session: Session,
    options: PlaceOptions,
    pool: Pool | None,
    watcher: Watcher,
    describe: type[Describe] = Describe,
) -> Boxes | None:
    """The machines of a pool that measure beside this one; None where this one does so alone."""
    if pool is None or options.resolved_reward == "simulated" or all(host.is_here for host in pool.hosts):
        return None
    why = _why_alone(session, options)
    if why is not None:
        watcher.note(f"this machine alone measures placements: {why}")
        return None
    check = check_of(session, options.reference, options.max_difference)
    site = Site(
        Packed.of(cast("WorkerSetup", session.client.setup)),
        options.objective,
        session.runner.limits,
        options.chosen_preset.measurement,
        partial(judging, check) if check.is_limit else None,
    )
    watcher.on_phase("looking for machines like this one")
    boxes = find_boxes(pool, site, watcher.note, watcher.should_stop, describe)
    if not boxes.hosts:
        return None
    names = ", ".join([boxes.here, *(host.name for host in boxes.hosts)])
    watcher.note(f"{1 + len(boxes.hosts)} machines measure placements: {names}")
    return boxes


def _why_alone(session: Session, options: PlaceOptions) -> str | None:
    """Why other machines cannot measure; None where they can."""
    if session.is_on_torch:
        return "--executor cuda measures on one"
    if options.objective.unit != "s" or options.objective.counts_memory:
        return f"values of --objective {options.objective.name} are not compared over machines"
    if options.max_difference is not None and options.reference == "onnxruntime":
        return "--reference onnxruntime needs the model's file"
    return None
