"""PlacetoPlacer: Placeto, a policy that improves a placement unit by unit, as a placer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.inputs import tokens_of
from hsdag.methods.learned.placeto.groups import groups_of
from hsdag.methods.learned.placeto.network import PlacetoConfig, PlacetoNetwork, needed_bytes
from hsdag.methods.learned.placeto.policy import ROWS, PlacetoPolicy
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.scoring.memory import MemoryCheck

GB = 1e9


class PlacetoPlacer(LearnedPlacer[PlacetoConfig]):
    """Visits groups of units in turn and places each anew, given where all others are; see docs/learned-methods.md."""

    name = "placeto"
    options_type = PlacetoConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> PlacetoPolicy:
        """Groups of the problem's units, by Merge-and-Colocate where asked for."""
        assert problem.costs is not None
        tokens = tokens_of(problem, with_costs=True) if self.options.wide_features else None
        groups = groups_of(problem.costs, self.options.groups, tokens)
        return PlacetoPolicy(PlacetoNetwork(groups, self.options, generator), groups, self.options)

    def needed_bytes(self, problem: Problem) -> float:
        """What an update holds at once."""
        num_groups = min(self.options.groups or problem.num_units, problem.num_units)
        return needed_bytes(num_groups, problem.num_devices, self.options, ROWS)

    def penalty(self, problem: Problem) -> Callable[[Plan], float]:
        """R(p) of A.7: the simulated value and so many seconds per GB that the fullest device is over its memory."""
        costs, semantics = problem.costs, problem.semantics
        assert costs is not None
        check, scale_s = MemoryCheck(costs, semantics), self.options.memory_penalty / GB

        def penalised(plan: Plan) -> float:
            if not problem.is_legal(plan.placement):
                return float("nan")
            over_bytes = float((check.peak_bytes(plan.placement) - costs.memory_bytes).max())
            value = float(problem.objective.simulated(costs, plan.placement[None], semantics, None)[0])
            return value + scale_s * over_bytes if over_bytes > 0 and np.isfinite(value) else float("nan")

        return penalised
