"""Lay the plan of a block over all blocks of its kind, one after another.

Legend: N ops, D devices, P positions, M ops of a block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.methods.anneal.values import Lists, schedule
from hsdag.methods.anneal.windows import UnitTimes, WindowCutter, starts_of
from hsdag.methods.exact.formulation import identical_devices
from hsdag.methods.repeated.blocks import Blocks
from hsdag.runtime.problem.plan import priority_by_end
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


@dataclass(frozen=True, eq=False)
class PlanLibrary:
    """The known plans of blocks, of every kind."""

    device: IntArray  # [P] D for a position whose device is not known
    rank: FloatArray  # [P] in its block
    num_devices: int

    @staticmethod
    def empty(blocks: Blocks, num_devices: int) -> PlanLibrary:
        """Return a library without plans."""
        num = int(blocks.position.max()) + 1
        return PlanLibrary(np.full(num, num_devices), np.zeros(num), num_devices)

    def joined(self, other: PlanLibrary) -> PlanLibrary:
        """Return the library with the plans of another one in place of its own."""
        is_known = other.device < other.num_devices
        return replace(
            self, device=np.where(is_known, other.device, self.device), rank=np.where(is_known, other.rank, self.rank)
        )

    def learn(self, blocks: Blocks, units: IntArray, device: IntArray, rank: FloatArray | IntArray) -> None:
        """Store the plan of a block: devices [M] and ranks [M] of its units [M]."""
        where = blocks.position[units]
        self.device[where[where >= 0]], self.rank[where[where >= 0]] = device[where >= 0], rank[where >= 0]

    def plan(self, blocks: Blocks, units: IntArray) -> tuple[IntArray, FloatArray]:
        """Return devices [M] and ranks [M] of a block's units [M], which are in topological order.

        A unit without a known plan has the device D, and its rank is the largest of the units before it.
        """
        where = blocks.position[units]
        is_known = (where >= 0) & (self.device[where] < self.num_devices)
        rank = np.where(is_known, self.rank[where], -np.inf)
        device = np.where(is_known, self.device[where], self.num_devices)
        return device, np.where(is_known, rank, np.maximum.accumulate(rank))


class Layer:
    """List scheduler that lays blocks one after another.

    In each block, identical devices are exchanged so that it ends as early as possible.
    """

    def __init__(self, costs: ScheduleProblem, blocks: Blocks) -> None:
        self._costs = costs
        self._blocks = blocks
        self._cutter, self._identical = WindowCutter(costs), identical_devices(costs)
        by_block = np.lexsort((inverse_of(costs.topological_order), blocks.block))
        firsts = np.searchsorted(blocks.block[by_block], np.arange(blocks.num_blocks + 1))
        self._units = [by_block[a:b] for a, b in itertools.pairwise(firsts.tolist())]

    def lay(self, library: PlanLibrary) -> tuple[IntArray, IntArray]:
        """Return devices [N] and ranks [N] of all ops by the plans of a library."""
        n, num_devices = self._costs.num_ops, self._costs.num_devices
        line = UnitTimes(np.full(n, n), np.zeros(n, dtype=np.int64), np.full(n, np.inf), np.zeros(n), 0.0)
        begun_s, exchange = np.zeros(num_devices), np.arange(num_devices + 1)
        for units in self._units:
            pin, rank = library.plan(self._blocks, units)
            line.place[units] = np.arange(len(units))
            lists = self._cutter.cut(line, units, begun_s, np.zeros(num_devices)).lists

            def ended(to: IntArray, lists: Lists = lists, pin: IntArray = pin, rank: FloatArray = rank) -> float:
                schedule(lists, to[pin], rank)
                return float(lists.end_s.max())

            exchange = best_exchange(ended, exchange, self._identical)
            ended(exchange)
            line.device[units], line.end_s[units], line.start_s[units] = lists.device, lists.end_s, starts_of(lists)
            line.place[units] = -1
            begun_s = lists.free_s.copy()
        return line.device, priority_by_end(line.end_s, line.start_s)


def best_exchange(ended: Callable[[IntArray], float], first: IntArray, identical: Sequence[IntArray]) -> IntArray:
    """Return an exchange [D + 1] of identical devices for which ``ended`` is small.

    An exchange gives, for each device, the device that takes its ops. Beginning with ``first``, two devices are
    exchanged as long as that makes ``ended`` smaller.

    Args:
        ended: Function from an exchange [D + 1] to the end of the schedule, in seconds.
        identical: Groups of identical devices.
    """
    best, best_s = first, ended(first)
    is_better = True
    while is_better:
        is_better = False
        for a, b in [pair for group in identical for pair in itertools.combinations(group.tolist(), 2)]:
            other = best.copy()
            other[[a, b]] = best[[b, a]]
            if (other_s := ended(other)) < best_s:
                best, best_s = other, other_s
                is_better = True
    return best
