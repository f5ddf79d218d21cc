"""Tokens: what is known of every unit by itself. Legend: U placement units, F features."""

from __future__ import annotations

import numpy as np
import torch

from hsdag.features import feature_matrix
from hsdag.learning.inputs import cost_features
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
