"""Costs of divided models: shards take their share of the whole op's measured time, until divided models are measured.

Legend: N ops of the model, M ops of the divided one, D devices, K divided models that were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.shards.rewrite import ShardedGraph
from hsdag.runtime.costs.fitting import fit_factors
from hsdag.runtime.costs.work_conserving_costs import PartTable, WorkConservingCosts

SPREAD = np.array([0.2, 2.0])
"""How far the factors of work and of boundaries may be off: pieces may be less efficient, and probes are small."""

SCATTER = 0.02
"""Scatter of measured ratios around the simulation."""


@dataclass(frozen=True)
class ShardFactors:
    """Factors from simulated to real seconds: of work, and of the launches and bytes at the boundaries of parts."""

    work: float = 1.0
    boundary: float = 1.0


def sharded_costs(
    costs: WorkConservingCosts, sharded: ShardedGraph, factors: ShardFactors = ShardFactors()
) -> WorkConservingCosts:
    """Return the costs of a divided model from those of the model; joining the pieces of a tensor counts as writing it.

    Ops that take no time, since they run in one kernel with the op before, read and write a tensor that is joined
    there.
    """
    graph = sharded.graph
    origin = np.array(sharded.origin)
    whole_s = costs.table.op_s[origin]
    rates = costs.cut_costs
    is_joined = (origin < 0) & np.isin(graph.op_types, ("Add", "Concat"))
    behind = graph.edge_dst[(is_joined & np.isin(graph.op_types, "Concat"))[graph.edge_src]]
    is_light = (origin >= 0) & (graph.flops > 0) & ~whole_s.any(axis=1) & np.isin(np.arange(graph.num_ops), behind)
    s_per_byte = (is_joined | is_light)[:, None] * rates.write_s_per_byte + is_light[:, None] * rates.read_s_per_byte
    time_s = np.where(origin[:, None] < 0, 0.0, whole_s * np.array(sharded.work)[:, None])
    time_s += graph.output_bytes[:, None] * s_per_byte
    scale = np.repeat([factors.work, factors.boundary], [costs.num_devices, 3 * costs.num_devices])
    return replace(costs, table=PartTable(graph, time_s), parameters=costs.parameters * scale)


def simulated_s(costs: WorkConservingCosts, devices: Sequence[int]) -> float:
    """Return the simulated seconds of an inference of a divided model; ``devices`` [M] compute its ops."""
    return float(costs.latency_s(np.array([devices]))[0])


def fitted_factors(
    costs: WorkConservingCosts, models: Sequence[ShardedGraph], measured_s: Sequence[float]
) -> ShardFactors:
    """Return factors with which simulations of divided models [K] agree with their measured seconds [K]."""
    factors = ShardFactors()
    for _ in range(2):  # with new factors another chain may be the longest
        rows = [sharded_costs(costs, model, factors).chain_s(np.array(model.devices)) for model in models]
        sides = [np.split(row, [costs.num_devices]) for row in rows]  # seconds of work, and of boundaries
        sums = np.array([[work.sum() / factors.work, boundary.sum() / factors.boundary] for work, boundary in sides])
        work, boundary = fit_factors(sums / np.array(measured_s)[:, None], SPREAD, SCATTER).tolist()
        factors = ShardFactors(work, boundary)
    return factors
