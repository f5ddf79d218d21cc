"""Batched searches that begin with the best list schedule: EA, SA, CP-SAT and MILP-SPLIT.

Legend: N ops, M ops of the fused problem, D devices, G groups of inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.methods.batched.incumbent import BatchIncumbent
from hsdag.methods.batched.lists import (
    search_best_device,
    search_greedy,
    search_heft,
    search_met,
    search_whole,
    warm_start,
)
from hsdag.methods.batched.walks import EVOLUTION, ON_CHAINS, ON_OPS, search_walks
from hsdag.methods.exact.batches import BatchedProblem, BatchSchedule
from hsdag.methods.exact.cpsat import CpSatPlacer
from hsdag.methods.exact.cpsat_model import IntervalModel
from hsdag.methods.exact.solving import cpsat_program
from hsdag.methods.incumbent import Limits, Status
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.problem.bounds import Bound
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.base import SearchStopped

MOST_WAITS = 3_000_000
"""Of a program: one of more takes longer to build than anybody waits, and gigabytes."""
SHARE_OF_SOLVER, SHARE_OF_CHAINS = 0.95, 0.35
"""Of the time that is left: what a solver may take, and the annealing of chains before that of ops."""


def search_ea(incumbent: BatchIncumbent) -> None:
    """The (1+1) EA from bMET; devices take ready batches in its order."""
    search_met(incumbent)
    search_walks(incumbent, incumbent.prices, EVOLUTION, incumbent.left_s)


def search_sa(incumbent: BatchIncumbent) -> None:
    """Annealing of placements and priorities."""
    warm_start(incumbent)
    if not incumbent.is_closed:
        search_walks(incumbent, incumbent.prices, ON_OPS, incumbent.left_s)


def search_cpsat(incumbent: BatchIncumbent) -> None:
    """The whole problem at once. Raises OptionError for a problem that is too large."""
    problem = incumbent.problem
    if problem.num_waits > MOST_WAITS:
        raise OptionError(
            f"the batched program of {problem.costs.num_ops:,} ops on {problem.costs.num_devices} devices would have "
            f"about {problem.num_waits:,} rows, and {MOST_WAITS:,} is the limit: use --method heft, greedy, ea or "
            "milp-split"
        )
    warm_start(incumbent)
    if not incumbent.is_closed:
        _solve(incumbent, problem, incumbent.left_s)


def search_split(incumbent: BatchIncumbent) -> None:
    """Chains and then ops annealed at the prices of devices, the dual of the load bound.

    A pivot's inputs may be divided over devices, and their batches end at different times: no dynamic program over
    devices joins modules, as for one input. What joins chains of ops, divided as one, are the prices of devices.
    """
    warm_start(incumbent)
    if incumbent.is_closed:
        return
    chains = FusedChains.of(incumbent.problem)
    inner = BatchIncumbent(chains.problem, SHARE_OF_CHAINS * incumbent.left_s, incumbent.should_stop, incumbent.seed)
    with contextlib.suppress(SearchStopped):
        warm_start(inner)
        if inner.best is None:  # CP-SAT divides ops over devices within memory, as if none read another
            _solve(inner, _without_edges(chains.problem), inner.left_s / 3)
        search_walks(inner, incumbent.prices, ON_CHAINS, inner.left_s)
    incumbent.num_considered += inner.num_considered
    if inner.best is not None:
        incumbent.consider_schedule(chains.expanded(inner.best, incumbent.problem))
    incumbent.wake()
    search_walks(incumbent, incumbent.prices, ON_OPS, incumbent.left_s)


METHODS: Mapping[str, Callable[[BatchIncumbent], None]] = {
    "best-device": search_best_device,
    "met": search_met,
    "greedy": search_greedy,
    "heft": search_heft,
    "ea": search_ea,
    "sa": search_sa,
    "cpsat": search_cpsat,
    "milp-split": search_split,
    "auto": search_split,  # lists and annealing in turn: a portfolio already
}


def search(incumbent: BatchIncumbent, method: str) -> None:
    """Search until the method ends or time is over; with an answer where one is easily found."""
    try:
        METHODS[method](incumbent)
    except SearchStopped:
        if incumbent.best is None:
            search_whole(incumbent)


def _solve(incumbent: BatchIncumbent, problem: BatchedProblem, seconds: float) -> None:
    """Let CP-SAT solve ``problem``; its bounds are those of the incumbent's problem where that has the same edges."""
    is_whole = problem is incumbent.problem
    horizon_s = min(incumbent.best_s, problem.horizon_s) if is_whole else problem.horizon_s
    model = IntervalModel.of_batches(problem, horizon_s, incumbent.wake)
    if incumbent.best is not None:
        model.hint(incumbent.best)
    consider = incumbent.consider_schedule if is_whole else lambda found: incumbent.consider(found.device)
    prove = (lambda s: incumbent.prove(Bound(min(s, incumbent.best_s), CpSatPlacer.argument))) if is_whole else _ignore
    limits = Limits(seconds * SHARE_OF_SOLVER, usable_cpus(), incumbent.seed)
    ending = cpsat_program(model, model.ticks, consider).follow(limits, prove, incumbent.wake, incumbent.best_s)
    incumbent.hit_limit |= ending in (Status.FEASIBLE, Status.TIME_LIMIT)


def _ignore(_: float) -> None:
    """A bound of another problem."""


def _without_edges(problem: BatchedProblem) -> BatchedProblem:
    no, held = np.zeros(0, dtype=np.int64), problem.held_bytes / problem.batches.group
    apart = replace(problem.costs, edge_src=no, edge_dst=no, edge_port=no, edge_bytes=np.zeros(0), output_bytes=held)
    return BatchedProblem(apart, problem.batches)


@dataclass(frozen=True, eq=False)
class FusedChains:
    """A smaller problem whose schedules are schedules of the whole; its optimum may be longer, its memory is more."""

    problem: BatchedProblem
    op2chain: IntArray  # [N] to M

    @staticmethod
    def of(whole: BatchedProblem) -> FusedChains:
        """Every op that is the only reader of its only input joins it; what a chain holds is part of its result."""
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
