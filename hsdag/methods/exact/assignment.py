"""CP-SAT models of the device of each op, and of the cost of a placement where order does not matter.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.exact.formulation import Formulation, identical_devices
from hsdag.methods.exact.solving import CpSatModel, T, Ticks
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, LinkSharing

Term = tuple[cp_model.IntVar, int]
Pair = tuple[int, int, int]  # consumer, its device, and the ticks of sending to it


class DeviceChoiceModel(CpSatModel[T]):
    """Model of the devices of ops: (1), (6) and the order of identical devices of DiviML, sections IV-A and VI.

    There is no solution if an op has no device left.

    Args:
        check: Called for every op while the model is built; its exceptions reach the caller.
    """

    def __init__(self, f: Formulation, check: Callable[[], object]) -> None:
        self.model = cp_model.CpModel()
        self._f, self._p = f, f.problem
        self._check = check
        self._place_every_op_once()
        self._keep_within_memory()
        self._order_identical_devices()

    def _place_every_op_once(self) -> None:
        """Add (1), over the devices that run an op and could hold it."""
        self.on = [
            {d: self.model.new_bool_var(f"x{i},{d}") for d in np.flatnonzero(row).tolist()}
            for i, row in enumerate(self._f.allowed)
        ]
        for on in self.on:
            self.model.add_exactly_one(list(on.values()))

    def _total(self, amounts: IntArray, ops: Iterable[int], d: int) -> Any:  # an expression of OR-Tools
        """Return the sum of ``amounts`` [N] over those of ``ops`` that are on device d."""
        there = [i for i in ops if d in self.on[i]]
        return cp_model.LinearExpr.weighted_sum([self.on[i][d] for i in there], [int(amounts[i]) for i in there])

    def _keep_within_memory(self) -> None:
        """Add (6), or what the memory rule requires, where it can bind.

        ``beside`` is the most that one running op takes in addition.
        """
        for d, there, capacity in self._f.capacities(self.on):
            beside = self.model.new_int_var(0, capacity.size, f"beside{d}")
            for i in there:
                self._check()
                if capacity.running[i]:
                    self.model.add(beside >= int(capacity.running[i]) * self.on[i][d])
            self.model.add(self._total(capacity.resident, there, d) + beside <= capacity.size)

    def _order_identical_devices(self) -> None:
        """Let the first of identical devices have no fewer ops, which breaks symmetries (section VI)."""
        for a, b in itertools.chain.from_iterable(map(itertools.pairwise, identical_devices(self._p))):
            first, second = (sum(on[d] for on in self.on if d in on) for d in (a, b))
            self.model.add(first >= second)

    def hint_devices(self, device: IntArray) -> None:
        """Let the search begin with devices [N]."""
        for on, d in zip(self.on, device.tolist(), strict=True):
            for other, here in on.items():
                self.model.add_hint(here, other == d)

    def devices(self, value: Callable[[cp_model.IntVar], int]) -> IntArray:
        """Return the devices [N] that the values of the variables describe."""
        return np.array([next(d for d, here in on.items() if value(here)) for on in self.on], dtype=np.int64)


class AssignmentModel(DeviceChoiceModel[IntArray]):
    """Model of the cost of placements [N] without an order, in ticks; a load is at most ``most``.

    Sequential execution: op times, a transfer of each result to each other device that reads it (one in all for
    EGRESS), launches, and overheads. Throughput: the load of the busiest device, bus or channel, or of a device with
    its transfers.
    """

    def __init__(
        self,
        f: Formulation,
        problem: Problem,
        ticks: Ticks,
        most: int,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(f, check)
        self._links = problem.semantics.links
        self._ticks = ticks
        if problem.semantics.execution is Execution.SEQUENTIAL:
            self._in_turn()
        else:
            self._busiest(most)

    def read(self, value: Callable[[cp_model.IntVar], int]) -> IntArray:
        """Return the placement [N]."""
        return self.devices(value)

    def _in_turn(self) -> None:
        """Minimise the sum of ops, transfers, launches and overheads."""
        run = self._ticks.down(self._p.time_s)
        terms = self._launches()
        for u, choices in enumerate(self.on):
            self._check()
            terms += [(x, int(run[u, d])) for d, x in choices.items()]
            for group in self._destinations(u):
                terms += self._layers(u, {a: self._pairs(u, a, group) for a in choices})
        self.model.minimize(_sum(terms) + int(self._ticks.down(self._p.op_overhead_s * (self._p.num_ops - 1))))

    def _launches(self) -> list[Term]:
        """Return the terms of launches, one where an op starts a run on a device."""
        launch = self._ticks.down(self._p.launch_s)
        terms: list[Term] = []
        for before, i in itertools.pairwise([-1, *self._p.topological_order.tolist()]):
            for d, x in self.on[i].items():
                if launch[d]:
                    starts = self.model.new_bool_var(f"l{i},{d}")
                    stays = [self.on[before][d]] if before >= 0 and d in self.on[before] else []
                    self.model.add_bool_or([x.negated(), starts, *stays])
                    terms.append((starts, int(launch[d])))
        return terms

    def _busiest(self, most: int) -> None:
        """Minimise the period, which is at least every load."""
        loads: list[list[Term]] = [[] for _ in range(self._p.num_devices * (1 + self._p.num_devices))]
        hold = self._ticks.down(self._p.time_s + self._p.op_overhead_s)
        for i, choices in enumerate(self.on):
            for a, x in choices.items():
                loads[a].append((x, int(hold[i, a])))
        for u in range(self._p.num_ops) if self._links is not LinkSharing.INDEPENDENT else ():
            self._check()
            for a, group in itertools.product(self.on[u], self._destinations(u)):
                terms = self._layers(u, {a: self._pairs(u, a, group)})
                for carrier in self._carriers(a, group):
                    loads[carrier] += terms
        period = self.model.new_int_var(0, most, "period")
        for load in loads:
            self.model.add(_sum(load) <= period)
        self.model.minimize(period)

    def _destinations(self, u: int) -> list[list[int]]:
        """Return the devices that a result may be sent to, in one group per transfer."""
        reachable = sorted({b for v in self._f.consumers[u] for b in self.on[v]})
        return [reachable] if self._links is LinkSharing.EGRESS else [[b] for b in reachable]

    def _carriers(self, a: int, group: list[int]) -> list[int]:
        """Return the indices of loads that a transfer from device a to a group of devices adds to."""
        d = self._p.num_devices
        if self._links is LinkSharing.BLOCKING:
            return [a, group[0]] if group[0] != a else []
        return [d + a] if self._links is LinkSharing.EGRESS else [d * (1 + a) + group[0]]

    def _pairs(self, u: int, a: int, group: list[int]) -> list[Pair]:
        """Return the consumers of u that may be on a device of ``group``, with the ticks of sending to it from a."""
        pairs = []
        for v, size in self._f.consumers[u].items():
            cost = self._ticks.down(self._f.transfer_s(size) + self._p.transfer_overhead_s)
            pairs += [(v, b, int(cost[a, b])) for b in group if b != a and b in self.on[v] and cost[a, b] > 0]
        return pairs

    def _layers(self, u: int, pairs: dict[int, list[Pair]]) -> list[Term]:
        """Return terms that add up to the most expensive chosen pair, for u on any device that ``pairs`` has."""
        terms: list[Term] = []
        below = 0
        for cost in sorted({cost for of_home in pairs.values() for _, _, cost in of_home}):
            y = self.model.new_bool_var(f"y{u},{cost}")
            chosen: dict[tuple[int, int], set[int]] = {}
            for a, of_home in pairs.items():
                for v, b, dear in of_home:
                    if dear >= cost:
                        chosen.setdefault((v, b), set()).add(a)
            for (v, b), homes in chosen.items():  # y is 1 where v is on b and u is on one of the homes
                elsewhere = [x for a, x in self.on[u].items() if a not in homes]
                self.model.add_bool_or([self.on[v][b].negated(), y, *elsewhere])
            terms.append((y, cost - below))
            below = cost
        return terms


def _sum(terms: list[Term]) -> Any:
    return cp_model.LinearExpr.weighted_sum([variable for variable, _ in terms], [ticks for _, ticks in terms])
