"""Settling: an objective that counts memory, or weighs others, once the model's profile is known.

Legend: U placement units, B plans.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.evaluators.memory import MemoryCheck
from hsdag.evaluators.schedule import model_values
from hsdag.ir.errors import OptionError
from hsdag.ir.processes import CandidateFailed
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.problem import Problem
from hsdag.search.session import Session


def settle(session: Session, problem: Problem, costs: PlacementCosts) -> Problem:
    """The problem with an objective that knows what the best single device has, which the session measures from now on.

    Peaks of memory are simulated by the problem, for whatever is measured too. Under HETERO's own costs methods compute
    times alone, so they do without these where memory counts.
    """
    objective = problem.objective
    alone = [problem.nearest(np.full(problem.num_units, d)) for d in range(problem.num_devices)]

    def best_single(term: Objective) -> float:
        values = model_values(replace(problem, objective=term), costs, alone)
        return float(np.min(values, initial=np.inf, where=np.isfinite(values)))

    found = replace(problem, objective=objective.settled(best_single))
    session.objective = session.runner.objective = found.objective
    if objective.counts_memory:
        if problem.costs is None:
            raise OptionError(f"--objective {objective.name} needs a profile of the model, which there is none of")
        session.runner.peak_of = lambda candidate: peak_of(session, problem, candidate)
        found = replace(found, hetero=None)
    return found


def peak_of(session: Session, problem: Problem, candidate: Candidate) -> float:
    """Bytes of the fullest device of a candidate at its fullest moment, simulated.

    A device that is not placed on peaks as any other one that has all ops does. Raises CandidateFailed where it is not
    known which op is where.
    """
    assert problem.costs is not None
    names = [spec.openvino_name for spec in session.devices.placed]
    able = np.flatnonzero(problem.supported.all(axis=0)).tolist()
    whole = [names.index(candidate.target)] if candidate.target in names else able
    units = None
    if candidate.devices is not None:
        units = session.of_units(problem, candidate.devices)
    elif candidate.target.startswith("HETERO:"):
        units = session.automatic(problem, candidate.target)
    elif candidate.target in [spec.openvino_name for spec in session.devices.all] and whole:
        units = np.full(problem.num_units, whole[0])
    if units is None:
        raise CandidateFailed("its peak of memory is not known, since nothing says which op is where")
    return float(MemoryCheck(problem.costs, problem.semantics).peak_bytes(units).max())
