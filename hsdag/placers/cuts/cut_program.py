"""The cut of any number of devices as an integer program, for small problems: a check and a proof."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph import IntArray
from hsdag.placers.cuts.boundary_costs import BoundaryCosts
from hsdag.placers.exact.assignment import AssignmentModel, WholeModel
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.solving import Ticks
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution

WORK_LIMIT = 2.0
"""Deterministic seconds of the solver: its answer does not depend on how busy the machine is."""


def solved_program(units: Problem, costs: ScheduleProblem, hint: IntArray) -> tuple[IntArray, float] | None:
    """A placement [U] of units with these costs, and seconds that none beats in sequential execution without limits.

    Starts from ``hint`` [U]; None where nothing was found within ``WORK_LIMIT``. Costs are rounded down to ticks, and
    so is the bound; where the solver ended, it is what the placement takes, but for rounding.
    """
    formulation = Formulation(replace(costs, memory_bytes=np.full(costs.num_devices, np.inf)))
    horizon_s = BoundaryCosts.of(costs).cost_s(hint)
    ticks = Ticks.choose(formulation.durations_s, max(horizon_s, 1e-12))
    sequential = replace(units, semantics=replace(units.semantics, execution=Execution.SEQUENTIAL))
    assignment = AssignmentModel(formulation, sequential, ticks.down)
    model = WholeModel(assignment.linear, assignment.wanted, int(ticks.down(horizon_s)) + 1)
    model.hint(assignment.chosen(hint))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = WORK_LIMIT
    if solver.solve(model.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return assignment.placement(model.read(solver.value)), solver.best_objective_bound * ticks.length_s
