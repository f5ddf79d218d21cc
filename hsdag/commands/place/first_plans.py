"""Plans that a search begins with: those that it measures first, and the one that the user gives.

Legend: U placement units.
"""

from __future__ import annotations

import numpy as np

from hsdag.commands.place.kinds import SPLIT, Kinds, contiguous
from hsdag.commands.place.session import Session
from hsdag.ir.placement.homes import op_devices, placed_priority
from hsdag.ir.placement.placement import Placement
from hsdag.methods.cuts.pipeline import PipelinePlacer, stage_placements
from hsdag.runtime.measuring.messages import automatic_targets
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan, unit_priority
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.memory import MemoryCheck
from hsdag.search.evaluators.schedule import model_values
from hsdag.search.options import PlaceOptions


def staged(problem: Problem) -> list[Plan]:
    """Return the plan of a pipeline, with as few boundaries as possible, if no device can hold the whole model.

    Memory forces a split then, and a search that simulates may find one with many more boundaries.
    """
    if problem.costs is None or problem.objective.name not in PipelinePlacer.objectives:
        return []
    first = next(stage_placements(problem), None)  # has all on one device if one can hold it
    plan = None if first is None else Plan(first)
    return [plan] if plan is not None and plan.is_split and problem.is_legal(plan.placement) else []


def openvinos_plans(session: Session, problem: Problem) -> list[Plan]:
    """Return the plans that OpenVINO chooses by itself under HETERO: the least that a search ends with."""
    targets = () if session.is_on_torch else automatic_targets(session.devices.placed, ())
    chosen = [session.automatic_ops(target) for target in targets if target.startswith("HETERO:")]
    placements = [session.model.of_units(problem, session.devices.index.openvino_positions(ops)) for ops in chosen]
    return [Plan(units) for units in placements if units is not None]


def first_splits(
    session: Session,
    options: PlaceOptions,
    problem: Problem,
    kinds: Kinds,
    profile: ModelProfile | None,
    costs: PlacementCosts | None,
) -> list[Plan]:
    """Return splits to measure first: the best contiguous ones by simulation, with and without slow-downs.

    A split that was timed before the search and has not lost comes first.
    """
    split = kinds.split if kinds.is_near(SPLIT) else None
    early = None if split is None else session.model.of_units(problem, split)
    timed = [] if early is None else [Plan(early)]
    if costs is None or profile is None:
        return timed
    plans = splits_that_fit(problem)
    free = session.model.costs(profile.model_copy(update={"contention": None}), options.search_executor)
    values = [model_values(problem, priced, plans) for priced in (costs, free) if plans]
    return list(dict.fromkeys([*timed, *(plans[int(np.argmin(of_plans))] for of_plans in values)]))


def splits_that_fit(problem: Problem) -> list[Plan]:
    """Return the contiguous splits that exceed no device's memory."""
    memory = MemoryCheck(problem.known_costs, problem.semantics)
    return [p for p in contiguous(problem) if p.is_split and not memory.overfull(p.placement).any()]


def plan_of(session: Session, problem: Problem, placement: Placement) -> Plan | None:
    """Return a placement as a plan of a problem's units; None if it is not a legal one."""
    units = session.model.of_units(problem, session.devices.index.positions(op_devices(placement, session.graph)))
    if units is None:
        return None
    priority = placed_priority(placement, session.graph)
    if priority is None or None in priority:
        return Plan(units)
    return Plan(units, unit_priority(problem.units.partition.labels, np.asarray(priority)))
