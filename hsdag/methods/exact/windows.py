"""Windows: pieces of a schedule solved again while the rest is fixed, which joins modules of several channels.

Legend: N ops, M ops of a window, D devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.methods.exact.cpsat import IntervalModel, Surroundings
from hsdag.methods.exact.formulation import Formulation, induced
from hsdag.methods.exact.solving import solver_of
from hsdag.methods.incumbent import Limits

IMPROVEMENT = 1e-9
"""A share of the makespan that counts."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule of all ops: devices and starts in seconds, with the makespan that is simulated for it."""

    device: IntArray  # [N]
    start_s: FloatArray  # [N]
    makespan_s: float


Simulated = Callable[[IntArray, FloatArray], Schedule | None]
"""Simulates devices [N] in the order of starts [N]; None where that is not legal."""


@dataclass(frozen=True, eq=False)
class _Part:
    """A solved window: its ops [M], their devices and starts, and the end of the plan with them."""

    ops: IntArray
    device: IntArray
    start_s: FloatArray
    end_s: float


class WindowSolver(AbstractContextManager["WindowSolver"]):
    """Solves windows of one problem, several at once, each by one worker within ``effort``.

    Effort is what CP-SAT counts instead of seconds: answers do not depend on the machine until ``deadline``, a moment
    of time.monotonic(), is near.
    """

    def __init__(self, f: Formulation, effort: float, deadline: float, num_threads: int = 2, seed: int = 0) -> None:
        self._f, self._p, self._effort, self._deadline, self._seed = f, f.problem, effort, deadline, seed
        self._pool = ThreadPoolExecutor(num_threads)
        self._producers: list[dict[int, float]] = [{} for _ in range(f.problem.num_ops)]
        for (u, v), size in f.edges.items():
            self._producers[v][u] = size

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def improve(self, plan: Schedule, windows: Sequence[IntArray], simulated: Simulated) -> Schedule | None:
        """A better plan with disjoint ``windows``, each of neighbours in time, solved again in parallel.

        What lies behind a window moves as a block. Where all of them together make it no better, one alone may.
        """
        found = [part for part in self._pool.map(lambda ops: self._solve(plan, ops), windows) if part is not None]
        found = [part for part in found if part.end_s < plan.makespan_s * (1 - IMPROVEMENT)]
        found.sort(key=lambda part: float(plan.start_s[part.ops].min()))
        alone = sorted(found, key=lambda part: part.end_s) if len(found) > 1 else []
        for parts in filter(None, [found, *([part] for part in alone)]):
            other = simulated(*_joined(plan, parts))
            if other is not None and other.makespan_s < plan.makespan_s * (1 - IMPROVEMENT):
                return other
        return None

    def _around(self, plan: Schedule, ops: IntArray) -> Surroundings:
        """What begins before ``ops``, fixed, and all behind them as a block that ends the plan."""
        p, behind = self._p, _behind_of(plan, ops)
        before = ~behind
        before[ops] = False
        arrival_s, tail_s = np.zeros((len(ops), p.num_devices)), np.zeros((len(ops), p.num_devices))
        free_s, device_tail_s = np.zeros(p.num_devices), np.zeros(p.num_devices)
        end_s = plan.start_s + p.time_s[np.arange(p.num_ops), plan.device]
        left_s = plan.makespan_s - plan.start_s
        np.maximum.at(free_s, plan.device[before], end_s[before] + p.op_overhead_s)
        np.maximum.at(device_tail_s, plan.device[behind], left_s[behind] + p.op_overhead_s)
        for k, v in enumerate(ops.tolist()):
            for u, size in self._producers[v].items():
                if before[u]:
                    arrival_s[k] = np.maximum(arrival_s[k], end_s[u] + self._f.transfer_s(size)[plan.device[u]])
            for w, size in self._f.consumers[v].items():
                if behind[w]:
                    sent_s = self._f.transfer_s(size)[:, plan.device[w]]
                    tail_s[k] = np.maximum(tail_s[k], left_s[w] + sent_s)
        return Surroundings(arrival_s, free_s, tail_s, device_tail_s)

    def _solve(self, plan: Schedule, ops: IntArray) -> _Part | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            return None
        around = self._around(plan, ops)
        model = IntervalModel(Formulation(induced(self._p, ops)), plan.makespan_s, around=around, with_loads=False)
        model.hint(plan.device[ops], plan.start_s[ops])
        solver = self._solver(left_s)
        if solver.solve(model.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        end_s = round(solver.objective_value) * model.ticks.length_s
        return _Part(ops, *model.read(solver.value), end_s)

    def _solver(self, left_s: float) -> cp_model.CpSolver:
        """For a model that is small: no linear relaxation, and a short presolve, which else take longer than search."""
        solver = solver_of(Limits(left_s, 1, self._seed))
        solver.parameters.max_deterministic_time = self._effort
        solver.parameters.linearization_level = 0
        solver.parameters.max_presolve_iterations = 1
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        return solver


def _behind_of(plan: Schedule, ops: IntArray) -> BoolArray:
    """[N] what begins with a window or later and is not of it."""
    behind = plan.start_s >= plan.start_s[ops].min()
    behind[ops] = False
    return np.asarray(behind, dtype=np.bool_)


def _joined(plan: Schedule, parts: Sequence[_Part]) -> tuple[IntArray, FloatArray]:
    """Devices and starts of a plan with windows, in order of time, put in; each gains for all behind it."""
    device, start_s = plan.device.copy(), plan.start_s.copy()
    gained_s = 0.0
    for part in parts:
        device[part.ops], start_s[part.ops] = part.device, part.start_s - gained_s
        start_s[_behind_of(plan, part.ops)] -= plan.makespan_s - part.end_s
        gained_s += plan.makespan_s - part.end_s
    return device, start_s


def sweeps(plan: Schedule, size: int) -> list[IntArray]:
    """Windows of ``size`` neighbours in time, each sharing half of its ops with the next."""
    order = np.lexsort((np.arange(len(plan.start_s)), plan.start_s))
    step = max(size // 2, 1)
    return [order[i : i + size] for i in range(0, max(len(order) - step, 1), step)]
