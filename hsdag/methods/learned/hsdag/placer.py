"""HsdagPlacer: the HSDAG method (learned groups, learned placement, REINFORCE) as a placer."""

from __future__ import annotations

import numpy as np
import torch

from hsdag.features import GROUPS, STRUCTURE_GROUPS, feature_matrix
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.hsdag.groups import Topology
from hsdag.methods.learned.hsdag.network import GroupNetwork, HsdagConfig
from hsdag.methods.learned.hsdag.policy import GroupPolicy
from hsdag.methods.learned.inputs import cost_features, edges_of, finite_times
from hsdag.methods.learned.networks import standardise
from hsdag.runtime.problem.problem import Problem


class HsdagPlacer(LearnedPlacer[HsdagConfig]):
    """Learns groups of units and their devices together; see docs/hsdag-method.md."""

    name = "hsdag"
    needs_costs = False
    options_type = HsdagConfig
    paper_reward = "measured"

    def policy(self, problem: Problem, generator: torch.Generator) -> GroupPolicy:
        """Features of units, and of their costs where these are known and asked for."""
        options, graph = self.options, problem.units.graph
        values, time_s = feature_matrix(problem.units, feature_groups(options)).values, None
        if options.costs and problem.costs is not None:
            values = np.concatenate([values, cost_features(problem.costs)], axis=1)
            time_s = torch.tensor(finite_times(problem.costs), dtype=torch.float32)
        topology = Topology.from_edges(graph.num_ops, graph.edge_src, graph.edge_dst)
        edges = edges_of(problem, with_costs=options.costs)
        network = GroupNetwork(standardise(values), topology, problem.supported, options, generator, time_s, edges)
        return GroupPolicy(network, options)


def feature_groups(config: HsdagConfig) -> tuple[str, ...]:
    """The feature groups that the options of Table 3 leave on, in the order of the feature matrix."""
    off: set[str] = set()
    if not config.output_shape:
        off.add("output_shape")
    if not config.node_id:
        off.add("positional")
    if not config.structure:
        off.update(STRUCTURE_GROUPS)
    return tuple(group for group in GROUPS if group not in off)
