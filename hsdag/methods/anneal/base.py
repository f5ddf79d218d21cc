"""Base of the methods of local search, which run chains of small random moves on parallel threads.

Legend: U placement units, K kinds of moves.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import ClassVar

import numpy as np

from hsdag.base.kernels import interpret
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.anneal.chain import (
    MoveKind,
    Values,
    chain_for,
    draw_move,
    end_proposal,
    places_of,
    restore,
    shares_of,
)
from hsdag.methods.anneal.values import Scheduled, schedule, values_of
from hsdag.methods.base import O, Placer
from hsdag.methods.incumbent import Incumbent, Status
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.evaluators.base import SearchStopped

SLICE_S = 0.01
"""Seconds, roughly, of proposals between two checks of a thread whether to stop."""
LOOK_EVERY_S = 0.02
"""Seconds between two checks for the end of the search, at which new best plans are reported too."""
LONGEST_SLICE = 1 << 20
"""Largest number of proposals between two checks of a thread whether to stop."""


Heat = tuple[float, float]
"""Temperatures of a chain at the start and the end of a round, in units of the objective."""


@dataclass(frozen=True, eq=False)
class ChainKind:
    """Description of one kind of chain."""

    share: FloatArray  # [K] relative frequency of each kind of move
    takes_order: bool
    has_pins: bool = False  # whether the chain's devices are pins of a list schedule

    def values(self, problem: Problem) -> Values:
        """Return the compiled evaluation of the chain's proposals."""
        return values_of(problem, takes_order=self.takes_order, has_pins=self.has_pins)


class Annealing:
    """Parallel chains of local search.

    The same seed and number of proposals give the same result on any number of threads.

    Args:
        sources: Description of each chain; those with pins come first.
        pool: Threads for the chains.
    """

    def __init__(self, incumbent: Incumbent, sources: Sequence[ChainKind], pool: ThreadPoolExecutor) -> None:
        problem = incumbent.problem
        seeds = np.random.SeedSequence(incumbent.limits.seed).generate_state
        self._incumbent = incumbent
        self._sources = tuple(sources)
        seeded = zip(sources, seeds(len(sources), np.uint64).tolist(), strict=True)
        self.chains = [chain_for(problem, source.share, seed, has_pins=source.has_pins) for source, seed in seeded]
        self._values = [source.values(problem) for source in sources]
        self._found: list[Plan | None] = [None] * len(sources)
        self._reported = list(self._found)
        self._stop = Event()
        self._pool = pool

    @property
    def value(self) -> float:
        """Return the least value of the chains' current plans, with penalties for memory that they exceed."""
        return min(float(chain.state["value"][0]) for chain in self.chains)

    def begin(self, plans: Sequence[tuple[IntArray, FloatArray] | None]) -> None:
        """Set the current placement [U] and ranks [U] of each chain; a chain keeps its own where None is given."""
        for chain, values, plan in zip(self.chains, self._values, plans, strict=True):
            if plan is not None:
                chain.device[:], chain.rank[:] = plan
                values.propose(chain, 0)

    @property
    def num_with_pins(self) -> int:
        """Return the number of chains that search over list schedules; they come first."""
        return sum(source.has_pins for source in self._sources)

    def share_best(self, which: Sequence[int]) -> None:
        """Set the chains with these indices to the best plan of all chains with pins."""
        best = min(self.chains[: self.num_with_pins], key=lambda chain: float(chain.state["best"][0]), default=None)
        if which and best is not None and np.isfinite(best.state["best"][0]):
            plan = best.best_device.copy(), best.best_rank.copy()
            self.begin([plan if i in which else None for i in range(len(self.chains))])

    def run(self, heats: Sequence[Heat], num: int) -> None:
        """Make ``num`` proposals in each chain, at its temperatures, and report new best plans.

        Raises SearchStopped when the search has to end.
        """
        if (num := int(min(num, self._incumbent.evaluations_left // len(self.chains)))) < 1:
            raise SearchStopped
        for chain, (first, last) in zip(self.chains, heats, strict=True):
            chain.state["temperature"] = first
            chain.state["cooling"] = (last / first) ** (1.0 / num) if first > 0 else 1.0
        before = self._num_proposals
        tasks = list[Future[None]]()
        is_timed = np.isfinite(self._incumbent.limits.seconds) and not np.isfinite(self._incumbent.evaluations_left)
        try:
            for i in range(len(self.chains)):
                tasks.append(self._pool.submit(self._run_chain, i, num))
            waiting = set(tasks)
            while waiting:
                waiting = wait(waiting, LOOK_EVERY_S).not_done
                self._incumbent.check()
                if is_timed:  # otherwise results must not depend on timing
                    self._report()
        finally:
            self._stop.set()
            wait(tasks)
            self._stop.clear()
            self._report(self._num_proposals - before)
        for task in tasks:
            task.result()

    @property
    def _num_proposals(self) -> int:
        return sum(int(chain.state["num_proposals"][0]) for chain in self.chains)

    def _run_chain(self, i: int, num: int) -> None:
        """Make ``num`` proposals in slices of about SLICE_S, and store each new best plan for the reporting thread."""
        chain = self.chains[i]
        size = 1
        end = int(chain.state["num_proposals"][0]) + num
        while (left := end - int(chain.state["num_proposals"][0])) > 0 and not self._stop.is_set():
            best = float(chain.state["best"][0])
            begin_s = time.monotonic()
            self._values[i].propose(chain, min(size, left))
            if chain.state["best"][0] < best:
                self._found[i] = self._best_plan(i)
            is_quick = time.monotonic() - begin_s < SLICE_S / 2
            size = min(2 * size, LONGEST_SLICE) if is_quick else max(size // 2, 1)

    def _report(self, count: int = 0) -> None:
        """Report the chains' new best plans to the evaluator, with ``count`` proposals made since the last report."""
        new = [plan for plan, old in zip(self._found, self._reported, strict=True) if plan is not old]
        self._reported = list(self._found)
        self._incumbent.report([plan for plan in new if plan is not None], count=count)

    def _best_plan(self, i: int) -> Plan:
        """Return the best plan of chain i, with ranks counted from 0."""
        chain, values = self.chains[i], self._values[i]
        device, rank = chain.best_device, chain.best_rank
        if self._sources[i].has_pins and isinstance(values, Scheduled):
            schedule(values.lists, device, rank)
            device, rank = values.lists.device, values.lists.rank
        return Plan(device, places_of(rank) if self._sources[i].takes_order else None)


SIMULATED = (LATENCY, THROUGHPUT)
"""Objectives whose values the compiled loop computes."""


class LocalPlacer(Placer[O]):
    """Local search from the best of a few plans.

    If plans are simulated, compiled chains run in parallel and report their best plans to the evaluator. Otherwise one
    chain has each of its proposals evaluated.

    Attributes:
        moves: Relative frequency of each kind of move.
    """

    is_seeded = True
    moves: ClassVar[Mapping[MoveKind, float]]

    @abstractmethod
    def starts(self, incumbent: Incumbent) -> list[Plan]:
        """Return plans of which the best is the start of the search."""

    @abstractmethod
    def rounds(self, chains: Annealing, incumbent: Incumbent, start: Plan) -> None:
        """Run the chains from ``start`` until they no longer find anything better."""

    @abstractmethod
    def heat(self, incumbent: Incumbent) -> float:
        """Return the temperature, in units of the objective, where proposals are evaluated one by one."""

    @abstractmethod
    def patience(self, incumbent: Incumbent) -> float:
        """Return after how many proposals in a row without a better plan to stop."""

    def _search(self, incumbent: Incumbent) -> Status:
        problem = incumbent.problem
        takes_order = incumbent.takes_order and self.gives_order
        starts = list(incumbent.limits.known) or self.starts(incumbent)
        incumbent.evaluate(starts)
        share = shares_of(problem, self.moves, takes_order=takes_order)
        if share.any() and incumbent.is_cheap and problem.objective in SIMULATED and problem.costs is not None:
            sources = self.sources(problem, share, takes_order)
            with ThreadPoolExecutor(max(1, min(incumbent.limits.num_workers, len(sources)))) as pool:
                self.rounds(Annealing(incumbent, sources, pool), incumbent, incumbent.best or starts[0])
        elif share.any():
            self._step_by_step(incumbent, share, takes_order)
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        takes_order = takes_order and self.gives_order
        share = shares_of(problem, self.moves, takes_order=takes_order)
        if not share.any() or problem.objective not in SIMULATED or problem.costs is None:
            return
        source = self.sources(problem, share, takes_order)[0]  # chains of other kinds use the same compiled code
        chain = chain_for(problem, source.share, seed=0, has_pins=source.has_pins)
        chain.device[:] = problem.supported.argmax(axis=1)
        source.values(problem).propose(chain, 0)

    def sources(self, problem: Problem, share: FloatArray, takes_order: bool) -> list[ChainKind]:  # noqa: ARG002
        """Return the description of each chain; ``share`` [K] is the relative frequency of each kind of move."""
        return [ChainKind(share, takes_order)]

    def _step_by_step(self, incumbent: Incumbent, share: FloatArray, takes_order: bool) -> None:
        """Run one chain, and evaluate each of its proposals."""
        chain = chain_for(incumbent.problem, share, incumbent.limits.seed)
        idle = 0
        rng = np.random.default_rng(incumbent.limits.seed)
        best, value = incumbent.best, incumbent.best_score
        if best is None:
            return
        chain.device[:], chain.rank[:] = placed_and_ranked(incumbent, best)
        while idle < self.patience(incumbent):
            interpret(draw_move, chain)
            before = incumbent.best_score
            if chain.state["num_changed"][0]:
                order = places_of(chain.rank) if takes_order else None
                other = incumbent.evaluate([Plan(chain.device, order)])[0].value
                if other <= value - self.heat(incumbent) * np.log(1.0 - rng.random()):
                    value = other
                else:
                    interpret(restore, chain)
                interpret(end_proposal, chain)
            idle = 0 if incumbent.best_score < before else idle + 1


def placed_and_ranked(incumbent: Incumbent, plan: Plan) -> tuple[IntArray, FloatArray]:
    """Return the placement [U] and the ranks [U] of a plan.

    A plan without an order is ranked by the simulated start of its units if the search takes orders and costs are
    known, else by topological order.
    """
    order = incumbent.problem.units.graph.position if plan.priority is None else plan.priority
    if plan.priority is None and incumbent.takes_order and incumbent.problem.costs is not None:
        order = simulate(incumbent.costs, plan.placement).priority
    return plan.placement, order.astype(np.float64)
