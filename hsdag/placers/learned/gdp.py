"""GdpPlacer: GDP, a graph encoder and attention that place all units in one pass, as a placer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hsdag.learning.encoders import Edges
from hsdag.learning.gdp.config import GdpConfig
from hsdag.learning.gdp.network import GdpNetwork, needed_bytes
from hsdag.learning.inputs import inputs_of
from hsdag.learning.stepwise import StepwisePolicy
from hsdag.learning.tokens import tokens_of
from hsdag.placers.base import Preset
from hsdag.placers.learned.base import LearnedPlacer, as_in_paper
from hsdag.runtime.problems.problem import Problem


class GdpPlacer(LearnedPlacer[GdpConfig]):
    """Gives logits of all units' devices in one pass, from which plans are drawn; see docs/learned-methods.md."""

    name = "gdp"
    needs_costs = False
    options_type = GdpConfig

    @classmethod
    def presets(cls, *, is_cheap: bool) -> Mapping[str, Preset[GdpConfig]]:  # noqa: ARG003
        """Ours, and the paper's."""
        paper = as_in_paper(GdpConfig.paper())
        return {"default": Preset(GdpConfig()), "paper": paper}

    def policy(self, problem: Problem, generator: torch.Generator) -> StepwisePolicy:
        """Units by type and output, and by their costs where these are known and asked for."""
        graph, x = problem.units.graph, tokens_of(problem, with_costs=self.options.costs)
        if self.options.costs and problem.costs is not None:
            edges = inputs_of(problem.costs).edges
        else:
            source, target = torch.tensor(graph.edge_src), torch.tensor(graph.edge_dst)
            edges = Edges(source, target, torch.zeros(len(source), 1))
        order = torch.tensor(graph.topological_order)
        network = GdpNetwork(x, edges, order, problem.num_devices, self.options, generator)
        return StepwisePolicy(network, problem.supported)

    def needed_bytes(self, problem: Problem) -> float:
        """What an update holds at once."""
        return needed_bytes(problem.num_units, problem.num_devices, self.options)


PLACER = GdpPlacer
