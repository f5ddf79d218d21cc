"""Chains of a local search on threads: rounds of proposals, what they found, and how they are stopped.

Legend: U placement units, K kinds of moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np

from hsdag.evaluators.base import SearchStopped
from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.placers.incumbent import Incumbent
from hsdag.placers.local.chain import Chain, chain_for
from hsdag.placers.local.loop import propose, start
from hsdag.runtime.problems.plan import Plan

SLICE_S = 0.01
"""What a thread computes without looking whether it has to stop."""
LOOK_EVERY_S = 0.02
"""How often it is looked whether the search has to end, and what was found."""
LONGEST_SLICE = 1 << 20


@dataclass(frozen=True)
class Heat:
    """The temperature of a chain in one round, in units of the objective, at its beginning and its end."""

    first: float
    last: float


class Annealing:
    """Chains that search side by side; with the same seed and number of proposals, on any number of threads, alike.

    ``ground`` makes what values come from, once a chain. Use as a context manager, which ends the threads.
    """

    def __init__(self, incumbent: Incumbent, ground: Callable[[], Any], share: FloatArray, num_chains: int) -> None:
        problem, seeds = incumbent.problem, np.random.SeedSequence(incumbent.limits.seed).generate_state
        self._incumbent = incumbent
        self.chains = [chain_for(problem, share, int(seed)) for seed in seeds(num_chains, np.uint64)]
        self._grounds = [ground() for _ in self.chains]
        self._found: list[Plan | None] = [None] * num_chains
        self._reported: list[Plan | None] = [None] * num_chains
        self.takes_order = incumbent.takes_order
        self._stop = Event()
        self._pool = ThreadPoolExecutor(max(1, min(incumbent.limits.num_workers, num_chains)))

    def __enter__(self) -> Annealing:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    @property
    def value(self) -> float:
        """The least value of any chain's present plan, with its penalty where it does not fit into memory."""
        return min(float(chain.state["value"][0]) for chain in self.chains)

    @property
    def num_idle(self) -> int:
        """Proposals of the chain that found a better plan of its own last, since then."""
        return min(int(chain.state["num_proposals"][0] - chain.state["gained_at"][0]) for chain in self.chains)

    def begin(self, plans: Sequence[tuple[IntArray, FloatArray] | None]) -> None:
        """Give every chain a placement [U] with ranks [U]; those that get None keep what they have."""
        for chain, ground, plan in zip(self.chains, self._grounds, plans, strict=True):
            if plan is not None:
                chain.device[:], chain.rank[:] = plan
                start(chain, ground)

    def run(self, heats: Sequence[Heat], num: int) -> None:
        """Let every chain make ``num`` proposals, and report the best plans. Raises SearchStopped in between."""
        num = int(min(num, self._incumbent.evaluations_left // len(self.chains)))
        if num < 1:
            raise SearchStopped
        for chain, heat in zip(self.chains, heats, strict=True):
            chain.state["temperature"] = heat.first
            chain.state["cooling"] = (heat.last / heat.first) ** (1.0 / num) if heat.first > 0 else 1.0
        before = self._num_proposals
        tasks = [self._pool.submit(self._run_chain, i, num) for i in range(len(self.chains))]
        num_reported = 0
        try:
            waiting = set(tasks)
            while waiting:
                waiting = wait(waiting, LOOK_EVERY_S).not_done
                self._incumbent.check()
                num_reported += self._report()
        finally:
            self._stop.set()
            wait(tasks)
            self._stop.clear()
            num_reported += self._report()
            self._incumbent.spend(self._num_proposals - before - num_reported)
        for task in tasks:
            task.result()

    @property
    def _num_proposals(self) -> int:
        return sum(int(chain.state["num_proposals"][0]) for chain in self.chains)

    def _run_chain(self, i: int, num: int) -> None:
        """Make proposals in slices that are neither long nor many; keep the best plan where the caller sees it."""
        chain, ground, size = self.chains[i], self._grounds[i], 1
        end = int(chain.state["num_proposals"][0]) + num
        while (left := end - int(chain.state["num_proposals"][0])) > 0 and not self._stop.is_set():
            best, begin_s = float(chain.state["best"][0]), time.monotonic()
            propose(chain, ground, min(size, left))
            if chain.state["best"][0] < best:
                self._found[i] = self._best_plan(chain)
            is_quick = time.monotonic() - begin_s < SLICE_S / 2
            size = min(2 * size, LONGEST_SLICE) if is_quick else max(size // 2, 1)

    def _report(self) -> int:
        """Have the plans evaluated, whatever the budget, that chains have found since; how many there are."""
        new = [plan for plan, old in zip(self._found, self._reported, strict=True) if plan is not old]
        self._reported = list(self._found)
        self._incumbent.evaluate_all([plan for plan in new if plan is not None])
        return len(new)

    def _best_plan(self, chain: Chain) -> Plan:
        """The best plan of a chain, its ranks counted from 0."""
        order = inverse_of(np.argsort(chain.best_rank, kind="stable")) if self.takes_order else None
        return Plan(chain.best_device, order)
