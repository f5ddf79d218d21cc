"""MILP-SPLIT with batches: modules in turn, windows over their seams, and the recursive bound.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
from ortools.sat.python import cp_model

from hsdag.evaluators.base import SearchStopped
from hsdag.exact.batched_bound import BatchedBounds
from hsdag.exact.batched_chains import fuse_chains
from hsdag.exact.batched_cpsat import BatchedIntervals, Standing, ticks_of
from hsdag.exact.batched_incumbent import BatchIncumbent
from hsdag.exact.batches import BatchSchedule
from hsdag.exact.cuts import CutRules, modules
from hsdag.exact.formulation import Formulation
from hsdag.exact.solving import SolverLimits
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.batched_lists import warm_start
from hsdag.placers.batched_local import search_ea, search_sa
from hsdag.placers.batched_solvers import NUM_WORKERS

SHARES = (0.25, 0.1, 0.2, 0.3)
"""Of the budget: the EA, annealing, modules in turn, windows; the rest is for the bound."""
MODULE_S, WINDOW_S = 5.0, 0.6
"""What one module and one window may take at most."""
WINDOW_OPS = 8
MOST_IDLE_SWEEPS = 3
"""Sweeps in a row, each with larger windows, after which nothing better is expected."""


def search_split(incumbent: BatchIncumbent, rules: CutRules | None = None) -> None:
    """On fused chains: local search, modules in turn, and windows of the best of both; then the bound, on all ops.

    A pivot's inputs may be divided over devices, and their batches end at different times: no dynamic program over
    devices joins modules, as for one input. A module is solved together with the next one, its batches stand from
    then on; a window places its ops anew while all others keep device and order.
    """
    warm_start(incumbent)
    budget_s = incumbent.left_s
    chains = fuse_chains(incumbent.problem)
    inner = BatchIncumbent(chains.problem, budget_s, incumbent.should_stop, incumbent.seed)
    parts = modules(Formulation(chains.problem.costs), rules or CutRules())
    each_s = max(min(MODULE_S, SHARES[2] * budget_s / len(parts)), 1e-3)
    window_s = max(min(WINDOW_S, SHARES[3] * budget_s / len(parts)), 1e-3)
    phases: tuple[Callable[[BatchIncumbent], None], ...] = (
        search_ea,
        search_sa,
        lambda search: forward(search, parts, each_s),
        lambda search: sweep(search, window_s),
    )
    for share, phase in zip(SHARES, phases, strict=True):
        inner.allow(share * budget_s)
        with contextlib.suppress(SearchStopped):
            phase(inner)
        if inner.best is not None:
            incumbent.consider(*chains.expanded(inner.best.device, inner.best.start_s, incumbent.problem))
        incumbent.wake()
    incumbent.hit_limit = inner.hit_limit
    _bound(incumbent, chains.op2chain, parts)


def _bound(incumbent: BatchIncumbent, op2chain: IntArray, parts: Sequence[IntArray]) -> None:
    left_s, begin_s = incumbent.left_s, incumbent.elapsed_s
    limits = SolverLimits(max(left_s / (4 * len(parts)), 1e-3), NUM_WORKERS, incumbent.seed)
    bounds = BatchedBounds(incumbent.problem, limits, lambda: begin_s + left_s - incumbent.elapsed_s)
    incumbent.prove(bounds.whole_s())
    incumbent.prove(bounds.recursive_s([np.flatnonzero(np.isin(op2chain, part)) for part in parts]))


def forward(incumbent: BatchIncumbent, parts: Sequence[IntArray], each_s: float) -> None:
    """Module after module, each with the next one in view; nothing where a module finds no room in its time."""
    problem = incumbent.problem
    n, d = problem.costs.time_s.shape
    device = np.zeros((n, problem.num_groups), dtype=np.int64)
    start_s = np.full((n, d), np.nan)
    horizon_s = problem.horizon_s if incumbent.best is None else 2 * incumbent.best_s
    for t in range(max(len(parts) - 1, 1)):
        ops = np.concatenate(parts[: t + 2])
        is_free = np.zeros(len(ops), dtype=np.bool_)
        is_free[sum(len(part) for part in parts[:t]) :] = True
        part = problem.of_ops(ops)
        standing = Standing(BatchSchedule(device[ops], start_s[ops]), is_free, is_pinned=True)
        model = BatchedIntervals(part, ticks := ticks_of(part, horizon_s), horizon_s, standing)
        if incumbent.best is not None:
            model.hint(BatchSchedule(incumbent.best.device[ops], incumbent.best.start_s[ops]))
        answer = solve_quickly(model, SolverLimits(each_s, NUM_WORKERS, incumbent.seed))
        incumbent.wake()
        if answer is None:
            return
        device[ops[is_free]] = answer[0][is_free]
        start_s[ops[is_free]] = ticks.seconds(answer[1])[is_free]
    incumbent.consider(device, start_s)


def sweep(incumbent: BatchIncumbent, window_s: float) -> None:
    """Sweeps of windows while they help."""
    idle, size = 0, WINDOW_OPS
    while incumbent.best is not None and idle < MOST_IDLE_SWEEPS:
        before_s = incumbent.best_s
        for ops in _windows(incumbent.best, size):
            incumbent.wake()
            improve(incumbent, ops, min(window_s, incumbent.left_s + 1e-3))
        is_better = incumbent.best_s < before_s
        idle, size = (0, size) if is_better else (idle + 1, size + size // 2)


def improve(incumbent: BatchIncumbent, ops: IntArray, window_s: float) -> None:
    """Place ``ops`` [M] anew while the others keep their devices and their order."""
    best = incumbent.best
    assert best is not None
    is_free = np.zeros(len(best.device), dtype=np.bool_)
    is_free[ops] = True
    ticks = ticks_of(incumbent.problem, incumbent.best_s)
    model = BatchedIntervals(incumbent.problem, ticks, incumbent.best_s, Standing(best, is_free))
    model.hint(best)
    answer = solve_quickly(model, SolverLimits(window_s, NUM_WORKERS, incumbent.seed))
    if answer is not None:
        incumbent.consider(*answer)


def solve_quickly(model: BatchedIntervals, limits: SolverLimits) -> tuple[IntArray, FloatArray] | None:
    """Devices and starts in ticks, without the steps of presolve that take longer than a window is worth."""
    solver = limits.solver()
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    status = solver.solve(model.model)
    return model.read(solver.value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def _windows(schedule: BatchSchedule, size: int) -> list[IntArray]:
    """Windows of ``size`` neighbours in time, each sharing half of its ops with the next."""
    first_s = np.nanmin(schedule.start_s, axis=1)
    order = np.lexsort((np.arange(len(first_s)), first_s))
    step = max(size // 2, 1)
    return [order[i : i + size] for i in range(0, max(len(order) - step, 1), step)]
