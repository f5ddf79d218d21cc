"""GdpPlacer: GDP, a graph encoder and attention that place all units in one pass, as a placer."""

from __future__ import annotations

import torch

from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.gdp.network import GdpConfig, GdpNetwork, needed_bytes
from hsdag.methods.learned.inputs import edges_of, tokens_of
from hsdag.methods.learned.policy import StepwisePolicy
from hsdag.runtime.problem.problem import Problem


class GdpPlacer(LearnedPlacer[GdpConfig]):
    """Gives logits of all units' devices in one pass, from which plans are drawn; see docs/learned-methods.md."""

    name = "gdp"
    needs_costs = False
    options_type = GdpConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> StepwisePolicy:
        """Units by type and output, and by their costs where these are known and asked for."""
        with_costs, order = self.options.costs, torch.tensor(problem.units.graph.topological_order)
        x, edges = tokens_of(problem, with_costs=with_costs), edges_of(problem, with_costs=with_costs)
        network = GdpNetwork(x, edges, order, problem.num_devices, self.options, generator)
        return StepwisePolicy(network, problem.supported)

    def needed_bytes(self, problem: Problem) -> float:
        """What an update holds at once."""
        return needed_bytes(problem.num_units, problem.num_devices, self.options)
