"""What no placement can beat under the costs of an explanation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.placers.cuts.mincut import proven_bound
from hsdag.reports.explanation import BoundSaid
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.problems.bounds import Bound
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.semantics import Execution, Semantics
from hsdag.search.placed_model import with_costs


def bound_of(problem: Problem, costs: PlacementCosts, value: float) -> BoundSaid | None:
    """The largest bound that is known, and the share of ``value`` that it leaves open; None where nothing is proven.

    Under HETERO that is the minimum cut. Where devices work side by side, transfers are taken to be free: parts send
    less than units do where they compute a join twice.
    """
    if problem.costs is None or not np.isfinite(value):
        return None
    priced = with_costs(problem, costs.costs, problem.costs.memory_bytes)
    assert priced.costs is not None
    if isinstance(costs, HeteroCosts):
        in_turn = replace(priced, hetero=costs, semantics=Semantics(execution=Execution.SEQUENTIAL))
        seconds, _ = proven_bound(in_turn, priced.costs)
        found = None if seconds is None else Bound(seconds, "the minimum cut")
    else:
        num = problem.num_devices
        free = replace(
            priced.costs, link_latency_s=np.zeros((num, num)), link_bandwidth_bytes_per_s=np.full((num, num), np.inf)
        )
        found = problem.objective.lower_bound(free, Execution.WORK_CONSERVING)
    if found is None or not np.isfinite(found.value_s):
        return None
    return BoundSaid(found.value_s, found.argument, max(0.0, 1.0 - found.value_s / value))
