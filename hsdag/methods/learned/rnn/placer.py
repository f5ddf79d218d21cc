"""RnnPlacer: the RNN-based method, a recurrent network that reads units and writes devices, as a placer."""

from __future__ import annotations

import numpy as np
import torch

from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.inputs import tokens_of
from hsdag.methods.learned.policy import StepwisePolicy
from hsdag.methods.learned.rnn.network import RnnConfig, SequenceNetwork, needed_bytes
from hsdag.runtime.problem.problem import Problem


class RnnPlacer(LearnedPlacer[RnnConfig]):
    """Writes the devices of units one by one, in topological order; see docs/learned-methods.md."""

    name = "rnn"
    needs_costs = False
    options_type = RnnConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> StepwisePolicy:
        """Units by type and output, and by their costs where these are known and asked for."""
        graph, x = problem.units.graph, tokens_of(problem, with_costs=self.options.costs)
        edges, order = torch.tensor(np.stack([graph.edge_src, graph.edge_dst])), torch.tensor(graph.topological_order)
        network = SequenceNetwork(x, edges, order, problem.num_devices, self.options, generator)
        return StepwisePolicy(network, problem.supported)

    def needed_bytes(self, problem: Problem) -> float:
        """What an update holds at once."""
        return needed_bytes(problem.num_units, self.options)
