"""MILP-SPLIT with batches: modules divided at the prices of devices, annealed together, and the recursive bound.

Chains, ops that only follow one another, come first: they share their devices, as one op. Legend: N ops, M ops of the
fused problem, D devices, G groups of inputs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np

from hsdag.batching.bound import bounded
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import warm_start
from hsdag.batching.walks import ON_CHAINS, ON_OPS, search_walks
from hsdag.evaluators.base import SearchStopped
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.ir.partition import Partition
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.cuts import modules
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.solving import solve_aloud
from hsdag.runtime.problems.units import problem_of

CHAINS, OPS = 0.3, 0.55
"""Shares of the budget: annealing of chains and of ops; the rest is for the bound."""
PACKING = 0.3
"""Share of the time for chains that a packing into memory may take."""


def search_split(incumbent: BatchIncumbent) -> None:
    """Chains and then ops annealed at the prices of the load; then the bound.

    A pivot's inputs may be divided over devices, and their batches end at different times: no dynamic program over
    devices joins modules, as for one input. What joins them are the prices of devices, the dual of the load bound,
    at which each module is divided.
    """
    warm_start(incumbent)
    budget_s, prices = incumbent.left_s, bounded(incumbent).prices
    if incumbent.is_closed:
        return
    chains = fuse_chains(incumbent.problem)
    _on_chains(incumbent, chains, prices, CHAINS * budget_s)
    search_walks(incumbent, prices, ON_OPS, OPS * budget_s)
    parts = modules(Formulation(chains.problem.costs))
    limits = replace(incumbent.limits, seconds=incumbent.left_s / (4 * len(parts)))
    bounds = bounded(incumbent, limits)
    incumbent.prove(bounds.recursive([np.flatnonzero(np.isin(chains.op2chain, part)) for part in parts]))


def _on_chains(incumbent: BatchIncumbent, chains: FusedChains, prices: FloatArray, seconds: float) -> None:
    """Anneal the smaller problem of fused chains; its schedules are schedules of all ops."""
    inner = BatchIncumbent(chains.problem, seconds, incumbent.should_stop, incumbent.seed)
    with contextlib.suppress(SearchStopped):
        warm_start(inner)
        if inner.best is None:
            _pack(inner)
        search_walks(inner, prices, ON_CHAINS, inner.left_s)
    incumbent.num_considered += inner.num_considered
    incumbent.hit_limit |= inner.hit_limit
    if inner.best is not None:
        incumbent.consider_schedule(chains.expanded(inner.best, incumbent.problem))
    incumbent.wake()


def _pack(incumbent: BatchIncumbent) -> None:
    """Where no list schedule fits: CP-SAT divides ops over devices within memory, as if none read another."""
    problem, p, nothing = incumbent.problem, incumbent.problem.costs, np.zeros(0, dtype=np.int64)
    held = problem.held_bytes / problem.batches.group
    apart = replace(p, edge_src=nothing, edge_dst=nothing, edge_port=nothing, edge_bytes=np.zeros(0), output_bytes=held)
    alone = BatchedProblem(apart, problem.batches)
    model = IntervalModel.of_batches(alone, alone.horizon_s, incumbent.wake)
    limits = replace(incumbent.limits, seconds=PACKING * incumbent.left_s)
    solve_aloud(model, limits, lambda found: incumbent.consider(found.device), lambda _: incumbent.wake())


@dataclass(frozen=True, eq=False)
class FusedChains:
    """A smaller problem whose schedules are schedules of the whole; its optimum may be longer, its memory is more."""

    problem: BatchedProblem
    op2chain: IntArray  # [N] to M

    def expanded(self, found: BatchSchedule, whole: BatchedProblem) -> BatchSchedule:
        """The schedule of all ops from that of chains."""
        device, start_s = found.device[self.op2chain], found.start_s[self.op2chain]
        counts = (device[:, :, None] == np.arange(start_s.shape[1])).sum(axis=1)  # [N, D]
        run_s = np.take_along_axis(whole.group_time_s, counts[:, :, None], axis=2)[:, :, 0] + whole.costs.op_overhead_s
        taken_s = np.zeros_like(found.start_s)
        for v in whole.costs.topological_order.tolist():
            start_s[v] += taken_s[self.op2chain[v]]
            taken_s[self.op2chain[v]] += run_s[v]
        return BatchSchedule(device, start_s)


def fuse_chains(whole: BatchedProblem) -> FusedChains:
    """Every op that is the only reader of its only input joins it; what a chain holds within is part of its result."""
    p, table = whole.costs, whole.batches
    num_out, num_in = (np.bincount(ends, minlength=p.num_ops) for ends in (p.edge_src, p.edge_dst))
    joins = (num_out[p.edge_src] == 1) & (num_in[p.edge_dst] == 1)
    chain = Partition.from_pairs(p.num_ops, p.edge_src[joins], p.edge_dst[joins]).labels
    units = problem_of(replace(p, labels=replace(p.labels, colocate=tuple(map(str, chain.tolist())))))
    costs, op2chain = units.costs, units.units.partition.labels
    assert costs is not None
    times = np.zeros((costs.num_ops, *table.time_s.shape[1:]))
    held = -np.bincount(costs.edge_dst, costs.edge_bytes, costs.num_ops)
    np.add.at(times, op2chain, table.time_s)
    np.add.at(held, op2chain, whole.held_bytes / table.group)
    times += (np.bincount(op2chain) - 1)[:, None, None] * p.op_overhead_s
    fused = replace(costs, output_bytes=np.maximum(held, 0.0))
    return FusedChains(BatchedProblem(fused, replace(table, time_s=times)), op2chain)
