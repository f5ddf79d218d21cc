"""Costs of divided models: shards take their part of what the whole op was measured to take, until some are measured.

Legend: N ops of the model, M ops of the divided one, D devices, K divided models that were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.ir.shards.rewrite import ShardedGraph
from hsdag.runtime.costs.fitting import fit_factors
from hsdag.runtime.costs.work_conserving_costs import PartTable, WorkConservingCosts
from hsdag.runtime.executor.merging import ASSUMED_BYTES_PER_S

SPREAD = np.array([0.2, 2.0])
"""How far factors may be off: pieces may be less efficient than the whole op, and probes of boundaries are small."""

SCATTER = 0.02
"""Of measured ratios around the simulation."""


@dataclass(frozen=True)
class ShardFactors:
    """By how much more than simulated work takes, and what begins and ends parts: launches and bytes."""

    work: float = 1.0
    boundary: float = 1.0


def sharded_costs(
    costs: WorkConservingCosts, found: ShardedGraph, factors: ShardFactors = ShardFactors()
) -> WorkConservingCosts:
    """Costs of a divided model's ops from those of the model's; what brings tensors together writes its result."""
    origin = np.array(found.origin)
    time_s = np.where(
        origin[:, None] < 0,
        found.graph.output_bytes[:, None] / ASSUMED_BYTES_PER_S,
        costs.table.op_s[np.maximum(origin, 0)] * np.array(found.work)[:, None],
    )
    scale = np.repeat([factors.work, factors.boundary], [costs.num_devices, 3 * costs.num_devices])
    return replace(costs, table=PartTable(found.graph, time_s), parameters=costs.parameters * scale)


def simulated_s(costs: WorkConservingCosts, devices: Sequence[int]) -> float:
    """Seconds of an inference of a divided model, by its costs; ``devices`` [M] compute its ops."""
    return float(costs.latency_s(np.array([devices]))[0])


def fitted_factors(
    costs: WorkConservingCosts, found: Sequence[ShardedGraph], measured_s: Sequence[float]
) -> ShardFactors:
    """Factors that make simulations of divided models [K] agree with what they were measured to take [K]."""
    factors = ShardFactors()
    for _ in range(2):  # the longest chain may become another one
        rows = [_chain(sharded_costs(costs, each, factors), each) for each in found]
        known = np.array([[work / factors.work, boundary / factors.boundary] for work, boundary in rows])
        work, boundary = fit_factors(known / np.array(measured_s)[:, None], SPREAD, SCATTER).tolist()
        factors = ShardFactors(work, boundary)
    return factors


def _chain(costs: WorkConservingCosts, found: ShardedGraph) -> tuple[float, float]:
    """Seconds of work, and of boundaries, along the longest chain of parts."""
    placement: IntArray = np.array(found.devices)
    row: FloatArray = costs.chain_s(placement)
    return float(row[: costs.num_devices].sum()), float(row[costs.num_devices :].sum())
