"""Inputs: what networks read of a problem before anything is placed.

Legend: N ops, E edges, D devices, U placement units, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from hsdag.features import feature_matrix
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.learned.networks import Edges, standardise
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import (
    OP_FEATURES,
    Levels,
    Tables,
    levels_of,
    mean_seconds,
    mean_transfers,
    op_features,
    paper_features,
    tables_of,
)

NUM_PAPER, NUM_WIDE = 5, len(OP_FEATURES)
"""Features of an op: DOPPLER's (App. E.1), and with ours."""


class Inputs(NamedTuple):
    """A problem as networks read it; without a time unit of its own, so that one network reads them all."""

    costs: ScheduleProblem
    tables: Tables
    levels: Levels
    x: torch.Tensor  # [N, F] features of ops; the first five are DOPPLER's (App. E.1)
    edges: Edges
    before: torch.Tensor  # [N] the producer on the longest path from the beginning, N at its end
    behind: torch.Tensor  # [N] the consumer on the longest path to the end, N at its end
    path_lengths: tuple[torch.Tensor, torch.Tensor]  # [N, 1] each: ops on these two, itself included


def inputs_of(costs: ScheduleProblem, *, is_wide: bool = True) -> Inputs:
    """What networks read of a problem; DOPPLER's five features, standardised, where not ``is_wide``."""
    tables = tables_of(costs)
    levels, num = levels_of(tables), costs.num_ops
    mean_s, edge_s = mean_seconds(tables), mean_transfers(tables, tables.out_bytes)
    source, target = np.repeat(np.arange(num), np.diff(tables.out_first)), tables.out_op
    unit_s = max(float(mean_s.mean()), np.finfo(float).tiny)
    if is_wide:
        x = torch.tensor(op_features(tables, levels), dtype=torch.float32)
    else:
        x = standardise(paper_features(tables, levels))
    cost = torch.tensor(np.log1p(edge_s / unit_s), dtype=torch.float32)[:, None]
    backwards = tables._replace(
        in_first=tables.out_first,
        in_op=tables.out_op,
        in_bytes=tables.out_bytes,
        out_first=tables.in_first,
        out_op=tables.in_op,
        out_bytes=tables.in_bytes,
        order=tables.order[::-1],
    )
    heaviest = (levels_of(backwards).heaviest, levels.heaviest)
    before, behind = (torch.tensor(np.where(each < 0, num, each)) for each in heaviest)
    ones = torch.ones(num, 1)
    return Inputs(
        costs=costs,
        tables=tables,
        levels=levels,
        x=x,
        edges=Edges(torch.tensor(source), torch.tensor(target), cost),
        before=before,
        behind=behind,
        path_lengths=(sum_over_path(ones, before), sum_over_path(ones, behind)),
    )


def cost_features(costs: ScheduleProblem) -> FloatArray:
    """[N, D + 14] what the ops cost: log times on every device relative to their mean, shares of all work, and wide x.

    Times are those of ``finite_times``.
    """
    time_s = finite_times(costs)
    mean_s = time_s.mean(axis=1)
    share = mean_s / mean_s.max()
    return np.concatenate([np.log(time_s / mean_s[:, None]), share[:, None], inputs_of(costs).x.numpy()], axis=1)


def finite_times(costs: ScheduleProblem) -> FloatArray:
    """[N, D] seconds, above 0 in single precision, too: a thousandth of the mean is added, or a second where all are 0.

    A device that lacks an op takes ten times as long.
    """
    time_s = np.where(costs.supported, costs.time_s, 10.0 * np.nanmax(costs.time_s, axis=1)[:, None])
    return np.asarray(time_s + (1e-3 * float(time_s.mean()) or 1.0), dtype=np.float64)


def sum_over_path(h: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """[N, H] sum of embeddings [N, H] over the path that begins at every op and goes on to ``following`` [N].

    N ends a path. Jumps double in length, so that O(log N) rounds do.
    """
    total = torch.cat([h, h.new_zeros(1, h.shape[1])])
    jump = torch.cat([following, torch.tensor([len(h)])])
    while bool((jump < len(h)).any()):
        total = total + total[jump]
        jump = jump[jump]
    return total[:-1]


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
    return Edges.without_costs(torch.tensor(graph.edge_src), torch.tensor(graph.edge_dst))
