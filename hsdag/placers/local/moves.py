"""Random neighbours of a placement. Legend: U placement units, D devices."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import BoolArray, ComputationGraph, IntArray

LONGEST_STRETCH = 0.5
"""Share of all units that one move may put on one device."""


class LocalMoves:
    """Draws neighbours in which every unit is on a device that supports it."""

    def __init__(self, supported: BoolArray, rng: np.random.Generator) -> None:
        self._supported, self._rng = supported, rng
        self._count = supported.sum(axis=1)  # [U] devices of each unit
        self._devices = np.argsort(~supported, axis=1, kind="stable")  # [U, D] those come first, by index
        self._slot = np.cumsum(supported, axis=1) - 1  # [U, D] the position of a device among them
        self.movable = np.flatnonzero(self._count > 1)

    def flipped(self, placement: IntArray) -> IntArray:
        """Each movable unit goes to another device with probability one by their number; at least one does."""
        num = len(self.movable)
        flips = self._rng.binomial(num, 1.0 / num)
        while flips == 0:
            flips = self._rng.binomial(num, 1.0 / num)
        return self._elsewhere(placement, self._rng.choice(self.movable, size=flips, replace=False))

    def moved(self, placement: IntArray) -> IntArray:
        """One movable unit goes to another device."""
        return self._elsewhere(placement, self._rng.choice(self.movable, size=1))

    def joined(self, placement: IntArray, graph: ComputationGraph) -> IntArray:
        """One movable unit goes to the device of one of its neighbours; to any other where that changes nothing."""
        v = int(self._rng.choice(self.movable))
        around = np.concatenate([graph.predecessors.of(v), graph.successors.of(v)])
        if len(around):
            device = placement[int(self._rng.choice(around))]
            if device != placement[v] and self._supported[v, device]:
                neighbour = placement.copy()
                neighbour[v] = device
                return neighbour
        return self._elsewhere(placement, np.array([v]))

    def stretched(self, placement: IntArray, order: IntArray) -> IntArray:
        """A stretch of ``order`` [U], short ones as likely as long ones, goes to one device that supports it."""
        longest = max(2.0, LONGEST_STRETCH * len(order))
        length = int(np.exp(self._rng.uniform(np.log(2.0), np.log(longest))))
        first = int(self._rng.integers(-length + 1, len(order)))
        units = order[max(first, 0) : first + length]
        device = int(self._rng.integers(self._supported.shape[1]))
        neighbour = placement.copy()
        units = units[self._supported[units, device]]
        neighbour[units] = device
        return neighbour

    def _elsewhere(self, placement: IntArray, units: IntArray) -> IntArray:
        """Each of ``units`` on another device of its own, uniformly."""
        choice = self._rng.integers(self._count[units] - 1)
        choice += choice >= self._slot[units, placement[units]]
        neighbour = placement.copy()
        neighbour[units] = self._devices[units, choice]
        return neighbour
