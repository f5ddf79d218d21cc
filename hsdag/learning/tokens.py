"""Tokens and edges: what is known of every unit by itself, and between units. Legend: U placement units, F features."""

from __future__ import annotations

import numpy as np
import torch

from hsdag.features import feature_matrix
from hsdag.learning.encoders import Edges
from hsdag.learning.inputs import cost_features, inputs_of
from hsdag.learning.networks import standardise
from hsdag.runtime.problems.problem import Problem


def tokens_of(problem: Problem, *, with_costs: bool) -> torch.Tensor:
    """[U, F] type, place in topological order, shape of the output, and its bytes, all that problem files know of it.

    Without places, shards of one op would be alike to a network. With costs, where they are known, the times on every
    device, transfers and levels too.
    """
    values = feature_matrix(problem.units, ("op_type", "positional", "output_shape")).values
    columns = [values, np.log1p(problem.units.graph.output_bytes)[:, None]]
    if with_costs and problem.costs is not None:
        columns.append(cost_features(problem.costs))
    return standardise(np.concatenate(columns, axis=1))


def edges_of(problem: Problem, *, with_costs: bool) -> Edges:
    """The edges of the units' graph, with what they carry where costs are asked for and known, else with zeros."""
    if with_costs and problem.costs is not None:
        return inputs_of(problem.costs).edges
    graph = problem.units.graph
    source, target = torch.tensor(graph.edge_src), torch.tensor(graph.edge_dst)
    return Edges(source, target, torch.zeros(len(source), 1))
