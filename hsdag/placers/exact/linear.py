"""A mixed-integer linear program as plain tables, for HiGHS or, where all of it is whole, for CP-SAT."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.exact.formulation import Formulation

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

    def choices(self, f: Formulation) -> list[dict[int, int]]:
        """(1): for each op a binary by device that may take it, of which one is 1. Raises ValueError for no device."""
        on = [{d: self.binary() for d in np.flatnonzero(row).tolist()} for row in f.allowed]
        for name, of_op in zip(f.problem.op_names, on, strict=True):
            if not of_op:
                raise ValueError(f"op {name!r} fits on no device")
            self.row([(x, 1.0) for x in of_op.values()], 1, 1)
        return on

    def order_twins(self, f: Formulation, on: list[dict[int, int]]) -> None:
        """Of identical devices the first has no fewer ops: symmetries by tasks (section VI)."""
        for a, b in f.twins:
            self.row([(of_op[d], sign) for of_op in on for d, sign in ((a, 1.0), (b, -1.0)) if d in of_op], low=0)


class WholeModel:
    """A linear model with whole coefficients as a CP-SAT model; its solutions are the values of ``wanted``.

    Variables without a limit are at most ``largest``; ``check`` is called row by row and may raise.
    """

    def __init__(
        self, linear: LinearModel, wanted: Sequence[int], largest: int, check: Callable[[], object] = lambda: None
    ) -> None:
        self.model = cp_model.CpModel()
        self._wanted = list(wanted)
        self.variables = [
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

    def read(self, value: Callable[[cp_model.IntVar], int]) -> list[int]:
        """The values of the wanted variables."""
        return [value(self.variables[k]) for k in self._wanted]

    def hint(self, values: Sequence[int]) -> None:
        """Begin with these values of the wanted variables."""
        for k, given in zip(self._wanted, values, strict=True):
            self.model.add_hint(self.variables[k], given)

    def _sum(self, index: Sequence[int], value: Sequence[float]) -> cp_model.LinearExprT:
        return cp_model.LinearExpr.weighted_sum([self.variables[k] for k in index], [round(c) for c in value])


def _whole(limit: float) -> int:
    return int(math.copysign(2**62, limit)) if math.isinf(limit) else round(limit)
