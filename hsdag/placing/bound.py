"""What could be gained at most over an answer: by its units, devices, links and slow-downs as they were measured.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hsdag.methods.cuts.mincut import proven_bound
from hsdag.placing.loaded_model import with_costs
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.problem.bounds.simple import critical_path_s, shared_load
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Semantics

WORTH_SAYING = 0.01
"""A share of the time: where less could be gained, nothing could."""


def least_s(problem: Problem, costs: PlacementCosts) -> float:
    """Return seconds that no placement of the problem's units is below, by the costs; 0 where nothing is proven.

    Under HETERO the minimum cut proves it. Where devices work side by side it is their shared load or the longest path,
    with transfers that are free. Two devices that slow each other down by f do at most 2 / f of the work of one.
    """
    priced = with_costs(problem, costs.costs, problem.known_costs.memory_bytes)
    if isinstance(costs, HeteroCosts):
        found = proven_bound(replace(priced, ops=costs, semantics=Semantics(execution=Execution.SEQUENTIAL)))
        return 0.0 if found is None or not np.isfinite(found.value) else found.value
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
    """Say in a sentence what could be gained of the time of an answer at most; nothing where that is not known.

    ``least`` are simulated seconds that nothing is below, ``simulated_s`` those of devices alone, which were measured
    to take ``measured_s``: a machine that is slower or faster than when it was profiled scales them all.
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
