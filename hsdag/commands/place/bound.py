"""Bound of what any other placement could still gain over the answer, by the measured costs.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hsdag.commands.place.loaded_model import with_costs
from hsdag.methods.cuts.mincut import proven_bound
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.problem.bounds.simple import critical_path_s, shared_load
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Semantics

WORTH_SAYING = 0.01
"""Share of the time below which a possible gain counts as none."""


def least_s(problem: Problem, costs: PlacementCosts) -> float:
    """Return a lower bound of the seconds of every placement of the problem's units; 0 if nothing is proven.

    Under HETERO the bound comes from a minimum cut. If devices work in parallel it is their shared load or the longest
    path, with free transfers. Two devices that slow each other down by a factor f do at most 2 / f of the work of one.
    """
    priced = with_costs(problem, costs.costs, problem.known_costs.memory_bytes)
    if isinstance(costs, HeteroCosts):
        bound = proven_bound(replace(priced, ops=costs, semantics=Semantics(execution=Execution.SEQUENTIAL)))
        return 0.0 if bound is None or not np.isfinite(bound.value) else bound.value
    units = priced.known_costs
    busy = 1.0
    if units.slowdown is not None and units.num_devices > 1:
        beside = units.slowdown[~np.eye(units.num_devices, dtype=np.bool_)]
        busy = float(np.clip(np.nan_to_num(beside, nan=1.0).min(), 1.0, units.num_devices))
    return max(busy * shared_load(units)[0], critical_path_s(units))


def left_to_gain(
    least: float,
    simulated_s: Mapping[str, float],
    measured_s: Mapping[str, float],
    answer_s: float,
    over: Sequence[str],
) -> str:
    """Return a sentence about the largest share of the answer's time that could be gained; empty if it is not known.

    Simulated seconds are scaled by what single devices measured, since the machine may be slower or faster than when
    it was profiled.

    Args:
        least: Lower bound, in simulated seconds.
        simulated_s: Simulated seconds of single devices.
        measured_s: Measured seconds of candidates, single devices among them.
        answer_s: Measured seconds of the answer.
        over: Names of the devices that the bound is for.
    """
    scale = [measured_s[name] / s for name, s in simulated_s.items() if name in measured_s and 0 < s < np.inf]
    if not scale or least <= 0 or len(over) < 2:
        return ""
    left = 1.0 - least * min(scale) / answer_s
    devices = " and ".join(over)
    if left < WORTH_SAYING:
        return f"Nothing more could be gained over {devices} (simulated)."
    return (
        f"At most {100 * left:.0f}% of the time could still be gained over {devices}, by what parts of the model, "
        "devices and links were measured to take (simulated)."
    )
