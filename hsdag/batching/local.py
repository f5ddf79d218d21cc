"""Batched local search: the biased (1+1) EA of DiviML (section V-A), and simulated annealing.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import numpy as np

from hsdag.batching.bound import bounded
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import search_met, warm_start
from hsdag.batching.walks import ON_OPS, search_walks
from hsdag.placers.local.moves import LocalMoves

PATIENCE, PATIENCE_PER_GENE = 5000, 100
"""The EA ends after this many neighbours without a gain, and this many more for each op and group."""
ASK_EVERY = 64
"""Neighbours between two looks at the clock."""


def search_ea(incumbent: BatchIncumbent) -> None:
    """From bMET; a neighbour moves each group of each op with probability one by their number.

    A placement [N, G] is the string of integers; devices take ready batches in breadth-first order.
    """
    search_met(incumbent)
    problem, makespan_s = incumbent.problem, incumbent.dispatcher.makespan_s
    can = np.asarray(np.isfinite(problem.group_time_s[:, :, 1:]).any(axis=2))  # [N, D]
    genes = LocalMoves(np.repeat(can, problem.num_groups, axis=0), np.random.default_rng(incumbent.seed))
    start = can.argmax(axis=1)[:, None].repeat(problem.num_groups, axis=1)
    current = start if incumbent.best is None else incumbent.best.device
    current_s, idle, patience = makespan_s(current), 0, PATIENCE + PATIENCE_PER_GENE * current.size
    while len(genes.movable) and idle < patience:
        for _ in range(ASK_EVERY):
            neighbour = genes.flipped(current.ravel()).reshape(current.shape)
            seconds = makespan_s(neighbour, current_s)
            idle = 0 if seconds < current_s else idle + 1
            if seconds < current_s:
                incumbent.consider(neighbour)
            if seconds <= current_s:
                current, current_s = neighbour, seconds
        incumbent.num_considered += ASK_EVERY
        incumbent.wake()


def search_sa(incumbent: BatchIncumbent) -> None:
    """Annealing of placements and priorities, from the best of the list schedulers."""
    warm_start(incumbent)
    prices = bounded(incumbent).prices
    if not incumbent.is_closed:
        search_walks(incumbent, prices, ON_OPS, incumbent.left_s)
