"""MILP-SPLIT with batches: modules divided at the prices of devices, annealed together, and the recursive bound.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from ortools.sat.python import cp_model

from hsdag.batching.bound import BatchedBounds
from hsdag.batching.chains import FusedChains, fuse_chains
from hsdag.batching.cpsat_model import BatchedIntervals, Standing, ticks_of
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import warm_start
from hsdag.batching.walks import Cooling, search_walks
from hsdag.evaluators.base import SearchStopped
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.exact.batches import BatchSchedule
from hsdag.placers.exact.cuts import CutRules, modules
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.solving import SolverLimits
from hsdag.runtime.platforms.usable_cpus import usable_cpus

CHAINS, OPS = 0.3, 0.55
"""Shares of the budget: annealing of chains and of ops; the rest is for the bound."""
ON_CHAINS, ON_OPS = Cooling(3e-3, 2e-4), Cooling(1e-3, 1e-4)
"""Chosen, like the weight of loads, on sdep-2 of benchmarks/diviml_costs.py."""
MODULE_S = 5.0
"""What one module may take at most where modules are solved in turn."""


def search_split(incumbent: BatchIncumbent, rules: CutRules | None = None) -> None:
    """Chains and then ops annealed at the prices of the load; then the bound.

    A pivot's inputs may be divided over devices, and their batches end at different times: no dynamic program over
    devices joins modules, as for one input. What joins them are the prices of devices, the dual of the load bound,
    at which each module is divided; where no list schedule fits, modules are solved in turn instead.
    """
    warm_start(incumbent)
    budget_s = incumbent.left_s
    bounds = BatchedBounds(incumbent.problem, SolverLimits(), lambda: incumbent.left_s, incumbent.best_s)
    incumbent.prove(bounds.whole_s())
    if incumbent.is_closed:
        return
    chains = fuse_chains(incumbent.problem)
    parts = modules(Formulation(chains.problem.costs), rules or CutRules())
    _on_chains(incumbent, chains, parts, bounds.prices, CHAINS * budget_s)
    search_walks(incumbent, bounds.prices, ON_OPS, OPS * budget_s)
    _bound(incumbent, chains.op2chain, parts)


def _on_chains(
    incumbent: BatchIncumbent, chains: FusedChains, parts: Sequence[IntArray], prices: FloatArray, seconds: float
) -> None:
    """Anneal the smaller problem of fused chains; its schedules are schedules of all ops."""
    inner = BatchIncumbent(chains.problem, seconds, incumbent.should_stop, incumbent.seed)
    with contextlib.suppress(SearchStopped):
        warm_start(inner)
        if inner.best is None:
            forward(inner, parts, max(min(MODULE_S, seconds / len(parts)), 1e-3))
        search_walks(inner, prices, ON_CHAINS, inner.left_s)
    incumbent.num_considered += inner.num_considered
    incumbent.hit_limit |= inner.hit_limit
    if inner.best is not None:
        incumbent.consider(*chains.expanded(inner.best.device, inner.best.start_s, incumbent.problem))
    incumbent.wake()


def _bound(incumbent: BatchIncumbent, op2chain: IntArray, parts: Sequence[IntArray]) -> None:
    left_s, begin_s = incumbent.left_s, incumbent.elapsed_s
    limits = SolverLimits(max(left_s / (4 * len(parts)), 1e-3), usable_cpus(), incumbent.seed)
    bounds = BatchedBounds(incumbent.problem, limits, lambda: begin_s + left_s - incumbent.elapsed_s, incumbent.best_s)
    incumbent.prove(bounds.whole_s())
    incumbent.prove(bounds.recursive_s([np.flatnonzero(np.isin(op2chain, part)) for part in parts]))


def forward(incumbent: BatchIncumbent, parts: Sequence[IntArray], each_s: float) -> None:
    """Module after module, each with the next one in view; nothing where a module finds no room in its time."""
    problem, horizon_s = incumbent.problem, incumbent.problem.horizon_s
    n, d = problem.costs.time_s.shape
    device = np.zeros((n, problem.num_groups), dtype=np.int64)
    start_s = np.full((n, d), np.nan)
    for t in range(max(len(parts) - 1, 1)):
        ops = np.concatenate(parts[: t + 2])
        is_free = np.zeros(len(ops), dtype=np.bool_)
        is_free[sum(len(part) for part in parts[:t]) :] = True
        part = problem.of_ops(ops)
        standing = Standing(BatchSchedule(device[ops], start_s[ops]), is_free)
        model = BatchedIntervals(part, ticks := ticks_of(part, horizon_s), horizon_s, standing, wake=incumbent.wake)
        answer = solve_quickly(model, SolverLimits(each_s, usable_cpus(), incumbent.seed))
        incumbent.wake()
        if answer is None:
            return
        device[ops[is_free]] = answer[0][is_free]
        start_s[ops[is_free]] = ticks.seconds(answer[1])[is_free]
    incumbent.consider(device, start_s)


def solve_quickly(model: BatchedIntervals, limits: SolverLimits) -> tuple[IntArray, FloatArray] | None:
    """Devices and starts in ticks, without the steps of presolve that take longer than a module is worth."""
    solver = limits.solver()
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    status = solver.solve(model.model)
    return model.read(solver.value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
