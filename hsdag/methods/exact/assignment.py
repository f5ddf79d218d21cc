"""Linear programs as plain tables, and objectives without an order as exact programs for k devices.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike
from ortools.sat.python import cp_model
from scipy.sparse import csr_array

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.exact.formulation import Formulation, twins_of
from hsdag.methods.exact.highs import HighsAnswer, solve_highs
from hsdag.methods.exact.solving import CpSatModel
from hsdag.methods.incumbent import Limits
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Links

INFINITE = float("inf")


@dataclass
class LinearModel:
    """Minimise ``cost`` x over rows low <= A x <= high; filled row by row."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    is_whole: list[bool] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    constant: float = 0.0
    row_low: list[float] = field(default_factory=list)
    row_high: list[float] = field(default_factory=list)
    row_start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def variable(self, low: float, high: float, *, is_whole: bool = False, cost: float = 0.0) -> int:
        """Add a variable and return its number."""
        self.low.append(low)
        self.high.append(high)
        self.is_whole.append(is_whole)
        self.cost.append(cost)
        return len(self.low) - 1

    def binary(self, cost: float = 0.0) -> int:
        """Add a variable that is 0 or 1."""
        return self.variable(0, 1, is_whole=True, cost=cost)

    def row(self, terms: Sequence[tuple[int, float]], low: float = -INFINITE, high: float = INFINITE) -> None:
        """Add low <= the sum of coefficient times variable <= high; a variable may come several times."""
        merged: dict[int, float] = {}
        for variable, coefficient in terms:
            merged[variable] = merged.get(variable, 0.0) + coefficient
        self.index.extend(merged)
        self.value.extend(merged.values())
        self.row_start.append(len(self.index))
        self.row_low.append(low)
        self.row_high.append(high)

    def rows(self, index: IntArray, value: FloatArray, high: float) -> None:
        """Add rows [K, W] of at most ``high``."""
        self.row_start.extend((self.row_start[-1] + index.shape[1] * np.arange(1, len(index) + 1)).tolist())
        self.index.extend(index.ravel().tolist())
        self.value.extend(value.ravel().tolist())
        self.row_low.extend([-INFINITE] * len(index))
        self.row_high.extend([high] * len(index))

    def solved(self, limits: Limits, on_wait: Callable[[], None] = lambda: None) -> HighsAnswer:
        """What HiGHS finds; ``on_wait`` and what is raised as in ``solve_highs``, the bound with the constant."""
        shape = len(self.row_low), len(self.low)
        matrix = csr_array((self.value, self.index, self.row_start), shape=shape)
        answer = solve_highs(
            np.array(self.cost), np.array(self.is_whole), (np.array(self.low), np.array(self.high)),
            (matrix, np.array(self.row_low), np.array(self.row_high)),
            seconds=limits.seconds, num_workers=limits.num_workers, seed=limits.seed, on_wait=on_wait,
        )  # fmt: skip
        return replace(answer, bound=answer.bound + self.constant)

    def choices(self, f: Formulation) -> list[dict[int, int]]:
        """(1): for each op a binary by device that may take it, of which one is 1; there is such a device."""
        on = [{d: self.binary() for d in np.flatnonzero(row).tolist()} for row in f.allowed]
        for of_op in on:
            self.row([(x, 1.0) for x in of_op.values()], 1, 1)
        return on

    def order_twins(self, f: Formulation, on: list[dict[int, int]]) -> None:
        """Of identical devices the first has no fewer ops: symmetries by tasks (section VI)."""
        for a, b in itertools.chain.from_iterable(map(itertools.pairwise, twins_of(f.problem))):
            self.row([(of_op[d], sign) for of_op in on for d, sign in ((a, 1.0), (b, -1.0)) if d in of_op], low=0)

    def keep_within_memory(self, f: Formulation, on: list[dict[int, int]], *, is_whole: bool = True) -> None:
        """(6), or what the memory rule asks for, where it can bind: in whole units, or in shares of the memory.

        ``beside`` is the most that any op of the device takes while it runs.
        """
        for d in range(f.problem.num_devices):
            there = [i for i, choices in enumerate(on) if d in choices]
            room = f.room(d, there)
            if room is None:
                continue
            unit = 1.0 if is_whole else float(max(room.size, 1))
            beside = self.variable(0, float(room.running[there].max()) / unit)
            for i in there:
                if room.running[i]:
                    self.row([(on[i][d], float(room.running[i]) / unit), (beside, -1.0)], high=0)
            held = [(on[i][d], float(room.held[i]) / unit) for i in there]
            self.row([*held, (beside, 1.0)], high=room.size / unit)


Amounts = Callable[[ArrayLike], np.ndarray]
Pair = tuple[int, int, float]  # consumer, its device, and the cost of sending there


class AssignmentModel:
    """Which device each op is on, and what that costs; ``of_seconds`` gives the unit, such as whole ticks.

    Sequential: op times, a transfer of each result to each other device that reads it (or one in all by EGRESS),
    launches, and overheads. Throughput: the load of the busiest device, bus, channel, or device with its transfers.
    """

    def __init__(self, f: Formulation, problem: Problem, of_seconds: Amounts) -> None:
        p, semantics = f.problem, problem.semantics
        self._f, self._p, self._links, self._of = f, p, semantics.links, of_seconds
        self.linear = LinearModel()
        self.on = self.linear.choices(f)
        self.linear.keep_within_memory(f, self.on)
        self.linear.order_twins(f, self.on)
        if semantics.execution is Execution.SEQUENTIAL:
            self._charge_ops_and_transfers()
            self._charge_launches()
        else:
            self._busiest()

    def _charge_ops_and_transfers(self) -> None:
        run = self._of(self._p.time_s)
        self.linear.constant += float(self._of(self._p.op_overhead_s * (self._p.num_ops - 1)))
        for u, choices in enumerate(self.on):
            for d, x in choices.items():
                self.linear.cost[x] += float(run[u, d])
            for group in self._destinations(u):
                for y, cost in self._layers(u, {a: self._pairs(u, a, group) for a in choices}):
                    self.linear.cost[y] += cost

    def _charge_launches(self) -> None:
        launch, before = self._of(self._p.launch_s), -1
        for i in self._p.topological_order.tolist():
            for d, x in self.on[i].items():
                if not launch[d]:
                    continue
                starts = self.linear.binary(float(launch[d]))
                stays = [(self.on[before][d], -1.0)] if before >= 0 and d in self.on[before] else []
                self.linear.row([(x, 1.0), *stays, (starts, -1.0)], high=0)
            before = i

    def _busiest(self) -> None:
        """The period is at least every load."""
        d = self._p.num_devices
        loads: list[list[tuple[int, float]]] = [[] for _ in range(d * (1 + d))]
        hold = self._of(self._p.time_s + self._p.op_overhead_s)
        for i, choices in enumerate(self.on):
            for a, x in choices.items():
                loads[a].append((x, float(hold[i, a])))
        for u in range(self._p.num_ops) if self._links is not Links.INDEPENDENT else ():
            for a, group in itertools.product(self.on[u], self._destinations(u)):
                terms = self._layers(u, {a: self._pairs(u, a, group)})
                for carrier in self._carriers(a, group):
                    loads[carrier] += terms
        period = self.linear.variable(0, float("inf"), cost=1.0)
        for load in loads:
            if load:
                self.linear.row([*load, (period, -1.0)], high=0)

    def _destinations(self, u: int) -> list[list[int]]:
        """Devices that a result may be sent to, those of one transfer together."""
        reachable = sorted({b for v in self._f.consumers[u] for b in self.on[v]})
        return [reachable] if self._links is Links.EGRESS else [[b] for b in reachable]

    def _carriers(self, a: int, group: list[int]) -> list[int]:
        """What a transfer from device a to those of a group occupies."""
        d = self._p.num_devices
        if self._links is Links.BLOCKING:
            return [a, group[0]] if group[0] != a else []
        return [d + a] if self._links is Links.EGRESS else [d * (1 + a) + group[0]]

    def _pairs(self, u: int, a: int, group: list[int]) -> list[Pair]:
        """Consumers of u that may be on a device of ``group``, with the cost of sending there from a."""
        found = []
        for v, size in self._f.consumers[u].items():
            cost = self._of(self._f.transfer_s(size) + self._p.transfer_overhead_s)
            found += [(v, b, float(cost[a, b])) for b in group if b != a and b in self.on[v] and cost[a, b] > 0]
        return found

    def _layers(self, u: int, pairs: dict[int, list[Pair]]) -> list[tuple[int, float]]:
        """Variables and costs that add up to the dearest pair that is chosen, for u on any of the devices of pairs."""
        costs = sorted({cost for of_home in pairs.values() for _, _, cost in of_home})
        terms, below = [], 0.0
        for cost in costs:
            y = self.linear.binary()
            chosen: dict[tuple[int, int], set[int]] = {}
            for a, of_home in pairs.items():
                for v, b, dear in of_home:
                    if dear >= cost:
                        chosen.setdefault((v, b), set()).add(a)
            for (v, b), homes in chosen.items():
                self._send(y, u, v, b, homes)
            terms.append((y, cost - below))
            below = cost
        return terms

    def _send(self, y: int, u: int, v: int, b: int, homes: set[int]) -> None:
        """y is 1 where v is on b and u is on one of ``homes``."""
        away = [(x, 1.0) for a, x in self.on[u].items() if a not in homes]
        if len(away) < len(homes):
            self.linear.row([(self.on[v][b], 1.0), *[(x, -1.0) for x, _ in away], (y, -1.0)], high=0)
        else:
            of_homes = [(self.on[u][a], 1.0) for a in sorted(homes)]
            self.linear.row([(self.on[v][b], 1.0), *of_homes, (y, -1.0)], high=1)


def chosen_devices(on: Sequence[Mapping[int, int]], values: Mapping[int, float] | FloatArray) -> IntArray:
    """[N] the device of each op, by its variables on devices and their values."""
    return np.array([max(of_op, key=lambda d, of_op=of_op: float(values[of_op[d]])) for of_op in on], dtype=np.int64)  # type: ignore[misc]


class WholeModel(CpSatModel[IntArray]):
    """An assignment whose coefficients are whole numbers as a CP-SAT model; its solutions are placements [N].

    Variables without a limit are at most ``largest``; ``check`` is called row by row and may raise.
    """

    def __init__(self, assignment: AssignmentModel, largest: int, check: Callable[[], object] = lambda: None) -> None:
        self.model, self._on, linear = cp_model.CpModel(), assignment.on, assignment.linear
        self._variables = [
            self.model.new_int_var(int(low), largest if math.isinf(high) else int(high), f"v{k}")
            for k, (low, high) in enumerate(zip(linear.low, linear.high, strict=True))
        ]
        for r, (low, high) in enumerate(zip(linear.row_low, linear.row_high, strict=True)):
            check()
            span = slice(linear.row_start[r], linear.row_start[r + 1])
            terms = self._sum(linear.index[span], linear.value[span])
            self.model.add_linear_constraint(terms, _whole(low), _whole(high))
        used = [k for k, cost in enumerate(linear.cost) if cost]
        objective = self._sum(used, [linear.cost[k] for k in used])
        self.model.minimize(objective + round(linear.constant))

    def read(self, value: Callable[[cp_model.IntVar], int]) -> IntArray:
        """The placement [N]."""
        values = {x: value(self._variables[x]) for on in self._on for x in on.values()}
        return chosen_devices(self._on, values)

    def hint(self, placement: IntArray) -> None:
        """Begin with a placement [N]."""
        for i, on in enumerate(self._on):
            for d, x in on.items():
                self.model.add_hint(self._variables[x], int(placement[i] == d))

    def _sum(self, index: Sequence[int], value: Sequence[float]) -> cp_model.LinearExprT:
        return cp_model.LinearExpr.weighted_sum([self._variables[k] for k in index], [round(c) for c in value])


def _whole(limit: float) -> int:
    return int(math.copysign(2**62, limit)) if math.isinf(limit) else round(limit)
