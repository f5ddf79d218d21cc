"""List schedules of perturbed ranks and pinned ops: a (1+1) search where one mutation moves all that comes behind it.

Legend: N ops, D devices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.exact.base import Judge
from hsdag.placers.lists.schedule import ListSchedule, list_schedule
from hsdag.runtime.problems.tables import levels_of, tables_of

MOST_SCHEDULES, MOST_OPS_PLACED = 1500, 1_000_000
"""What is tried at most: schedules, and ops of all of them together; of large graphs, that allow few, none is."""
MEAN_MUTATIONS, SHARE_PINNED, SHARE_FREED, SPREAD = 1.5, 0.65, 0.5, 0.3
"""Ops that one step changes; how many of them change their pin, of those how many lose it; else the logarithm of a
rank moves by a normal number of this deviation."""
WAKE_EVERY = 50
"""Schedules between two moments at which the evaluator may end the search."""


@dataclass(frozen=True, eq=False)
class _Genes:
    """What a list schedule is made of: pins [N], -1 for the device where an op ends first, and factors of ranks."""

    pinned: IntArray
    log_factor: FloatArray  # [N]

    def mutated(self, num_devices: int, rng: np.random.Generator) -> _Genes:
        pinned, log_factor = self.pinned.copy(), self.log_factor.copy()
        for op in rng.integers(0, len(pinned), 1 + rng.poisson(MEAN_MUTATIONS - 1)).tolist():
            if rng.random() < SHARE_PINNED:
                pinned[op] = -1 if rng.random() < SHARE_FREED else rng.integers(num_devices)
            else:
                log_factor[op] += SPREAD * rng.standard_normal()
        return _Genes(pinned, log_factor)


def search_lists(judge: Judge, deadline: float, seed: int) -> None:
    """Begin with HEFT and keep what is no longer, simulated; ``judge`` hears of what is shorter.

    The same seed takes the same steps, as many as come before ``deadline``, a moment of time.monotonic().
    """
    costs, rng = judge.costs, np.random.default_rng(seed)
    steps = min(MOST_SCHEDULES, MOST_OPS_PLACED // max(costs.num_ops, 1))
    if steps < WAKE_EVERY:
        return
    tables = tables_of(costs)
    upward_s = levels_of(tables).upward_s

    def scheduled(genes: _Genes) -> ListSchedule:
        return list_schedule(tables, upward_s * np.exp(genes.log_factor), insertion=True, pinned=genes.pinned)

    genes = _Genes(np.full(costs.num_ops, -1, dtype=np.int64), np.zeros(costs.num_ops))
    schedule = scheduled(genes)
    value_s = judge.incumbent.consider(schedule.device, schedule.ranks)
    for step in range(steps):
        if time.monotonic() > deadline:
            return
        if step % WAKE_EVERY == 0:
            judge.wake()
        changed = genes.mutated(costs.num_devices, rng)
        found = scheduled(changed)
        found_s = judge.simulated_s(found.device, found.ranks)
        if found_s < value_s:
            found_s = judge.incumbent.consider(found.device, found.ranks)
        if found_s <= value_s:
            genes, value_s = changed, found_s
