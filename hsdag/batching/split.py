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
from hsdag.placers.exact.batches import BatchedProblem, BatchTable
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.cuts import CutRules, modules
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.solving import solve_aloud
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

CHAINS, OPS = 0.3, 0.55
"""Shares of the budget: annealing of chains and of ops; the rest is for the bound."""
PACKING = 0.3
"""Share of the time for chains that a packing into memory may take."""


def search_split(incumbent: BatchIncumbent, rules: CutRules | None = None) -> None:
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
    parts = modules(Formulation(chains.problem.costs), rules or CutRules())
    limits = replace(incumbent.limits, seconds=incumbent.left_s / (4 * len(parts)))
    bounds = bounded(incumbent, limits)
    incumbent.prove(bounds.recursive_s([np.flatnonzero(np.isin(chains.op2chain, part)) for part in parts]))


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
        incumbent.consider(*chains.expanded(inner.best.device, inner.best.start_s, incumbent.problem))
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
    place: IntArray  # [N] place of an op within its chain

    def expanded(self, device: IntArray, start_s: FloatArray, whole: BatchedProblem) -> tuple[IntArray, FloatArray]:
        """Devices [N, G] and starts [N, D] of all ops, from those of chains: [M, G] and [M, D]."""
        devices, chains = device[self.op2chain], np.argsort(self.place, kind="stable")
        starts = start_s[self.op2chain].copy()
        taken = np.zeros_like(start_s)
        counts = (devices[:, :, None] == np.arange(start_s.shape[1])).sum(axis=1)  # [N, D]
        run_s = np.take_along_axis(whole.group_time_s, counts[:, :, None], axis=2)[:, :, 0] + whole.costs.op_overhead_s
        for v in chains.tolist():
            starts[v] += taken[self.op2chain[v]]
            taken[self.op2chain[v]] += run_s[v]
        return devices, starts


def fuse_chains(whole: BatchedProblem) -> FusedChains:
    """Every op that is the only reader of its only input joins it."""
    p = whole.costs
    num_out, num_in = (np.bincount(ends, minlength=p.num_ops) for ends in (p.edge_src, p.edge_dst))
    joins = (num_out[p.edge_src] == 1) & (num_in[p.edge_dst] == 1)
    before = np.full(p.num_ops, -1, dtype=np.int64)
    before[p.edge_dst[joins]] = p.edge_src[joins]
    chain, place, heads = np.empty(p.num_ops, dtype=np.int64), np.zeros(p.num_ops, dtype=np.int64), 0
    for v in p.topological_order.tolist():
        if before[v] >= 0:
            chain[v], place[v] = chain[before[v]], place[before[v]] + 1
        else:
            chain[v], heads = heads, heads + 1
    last = np.zeros(heads, dtype=np.int64)
    np.maximum.at(last, chain, place)
    tail = np.flatnonzero(place == last[chain])
    end = np.empty(heads, dtype=np.int64)
    end[chain[tail]] = tail
    return FusedChains(
        _fused(whole, chain, end, p.edge_src[~joins], p.edge_dst[~joins], p.edge_bytes[~joins]), chain, place
    )


def _fused(
    whole: BatchedProblem, chain: IntArray, end: IntArray, src: IntArray, dst: IntArray, size: FloatArray
) -> BatchedProblem:
    """Times, weights and overheads of a chain add up; what it holds within is taken for part of its result."""
    p, count = whole.costs, len(end)
    times = np.zeros((count, *whole.batches.time_s.shape[1:]))
    np.add.at(times, chain, whole.batches.time_s)
    times += (np.bincount(chain, minlength=count) - 1)[:, None, None] * p.op_overhead_s
    one = np.zeros((count, p.num_devices))
    np.add.at(one, chain, p.time_s)
    weight, held = np.zeros(count), np.zeros(count)
    np.add.at(weight, chain, p.weight_bytes)
    np.add.at(held, chain, whole.held_bytes / whole.batches.group)
    np.add.at(held, chain[dst], -size)
    costs = ScheduleProblem.from_arrays(
        one,
        np.stack([chain[src], chain[dst]], axis=1),
        output_bytes=np.maximum(held, 0.0),
        edge_bytes=size,
        link_latency_s=p.link_latency_s,
        link_bandwidth_bytes_per_s=p.link_bandwidth_bytes_per_s,
        weight_bytes=weight,
        memory_bytes=p.memory_bytes,
        op_overhead_s=p.op_overhead_s,
        name=p.name,
        op_names=[p.op_names[v] for v in end.tolist()],
        device_names=p.device_names,
    )
    table = whole.batches
    return BatchedProblem(costs, BatchTable(table.num_inputs, table.sizes, times, table.group))
