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
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.incumbent import Incumbent
from hsdag.placers.local.chain import chain_for, places_of
from hsdag.placers.local.listed import Listed, schedule
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


@dataclass(frozen=True, eq=False)
class Source:
    """What chains of one kind draw moves by, ``share`` [K], and what makes that which their values come from."""

    share: FloatArray
    ground: Callable[[], Any]
    has_pins: bool = False
    takes_order: bool = False


class Annealing:
    """Chains that search side by side; with the same seed and number of proposals, on any number of threads, alike.

    ``sources`` are those of the chains. Use as a context manager, which ends the threads.
    """

    def __init__(self, incumbent: Incumbent, sources: Sequence[Source]) -> None:
        problem, seeds = incumbent.problem, np.random.SeedSequence(incumbent.limits.seed).generate_state
        self._incumbent, self._sources = incumbent, tuple(sources)
        each = zip(sources, seeds(len(sources), np.uint64).tolist(), strict=True)
        self.chains = [chain_for(problem, source.share, seed, has_pins=source.has_pins) for source, seed in each]
        self._grounds = [source.ground() for source in sources]
        self._found: list[Plan | None] = [None] * len(sources)
        self._reported = list(self._found)
        self._stop = Event()
        self._pool = ThreadPoolExecutor(max(1, min(incumbent.limits.num_workers, len(sources))))

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
                start(ground, chain)

    @property
    def num_with_pins(self) -> int:
        """Chains that search over list schedules; they come first."""
        return sum(source.has_pins for source in self._sources)

    def share_best(self, which: Sequence[int]) -> None:
        """Let some chains go on from the best that any of those with pins has found."""
        best = min(self.chains[: self.num_with_pins], key=lambda chain: float(chain.state["best"][0]), default=None)
        if which and best is not None and np.isfinite(best.state["best"][0]):
            plan = best.best_device.copy(), best.best_rank.copy()
            self.begin([plan if i in which else None for i in range(len(self.chains))])

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
        limits = self._incumbent.limits
        is_timed = np.isfinite(limits.seconds) and not np.isfinite(self._incumbent.evaluations_left)
        try:
            waiting = set(tasks)
            while waiting:
                waiting = wait(waiting, LOOK_EVERY_S).not_done
                self._incumbent.check()
                if is_timed:  # else what is reported must not depend on when
                    self._report()
        finally:
            self._stop.set()
            wait(tasks)
            self._stop.clear()
            self._incumbent.spend(self._num_proposals - before)
            self._report()
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
            propose(ground, chain, min(size, left))
            if chain.state["best"][0] < best:
                self._found[i] = self._best_plan(i)
            is_quick = time.monotonic() - begin_s < SLICE_S / 2
            size = min(2 * size, LONGEST_SLICE) if is_quick else max(size // 2, 1)

    def _report(self) -> None:
        """Have the plans evaluated, whatever the budget, that chains have found since."""
        new = [plan for plan, old in zip(self._found, self._reported, strict=True) if plan is not old]
        self._reported = list(self._found)
        self._incumbent.report([plan for plan in new if plan is not None])

    def _best_plan(self, i: int) -> Plan:
        """The best plan of a chain, its ranks counted from 0."""
        chain, ground = self.chains[i], self._grounds[i]
        device, rank = chain.best_device, chain.best_rank
        if isinstance(ground, Listed):
            schedule(ground, device, rank)
            device, rank = ground.device, ground.rank
        order = places_of(rank) if self._sources[i].takes_order else None
        return Plan(device, order)
