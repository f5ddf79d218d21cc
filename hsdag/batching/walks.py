"""Walks: annealing of one batched problem side by side, from a schedule to better ones.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hsdag.batching.annealing import Moves, State, anneal, evaluate, moves_of, state_of
from hsdag.batching.bound import bounded
from hsdag.batching.dispatch import Dispatcher
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import warm_start
from hsdag.ir.graph import FloatArray
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule

NUM_WALKS = 2
NUM_TEMPERATURES = 400
STEP_S = 3.5e-8
"""Seconds of a step for each op and edge: what a budget is turned into steps with."""
STEPS_PER_GENE = 20_000
"""Steps for each op and group after which nothing better is expected."""
WEIGHT = 1.0
"""What a second of load, at the prices of devices, counts beside a second of makespan."""


@dataclass(frozen=True)
class Cooling:
    """Temperatures of a walk, from the first to the last in equal ratios, as shares of the makespan it begins with."""

    hot: float
    cold: float

    def heat_s(self, share: float, makespan_s: float) -> float:
        """When ``share`` of the walk is done."""
        return float(makespan_s * self.hot * (self.cold / self.hot) ** share)


ON_CHAINS, ON_OPS = Cooling(3e-3, 2e-4), Cooling(1e-3, 1e-4)
"""Chosen, like the weight of loads, on sdep-2 of the simulated costs of DiviML."""


@dataclass(frozen=True, eq=False)
class Walk:
    """One annealing under way."""

    dispatcher: Dispatcher
    moves: Moves
    state: State

    @staticmethod
    def begin(problem: BatchedProblem, price: FloatArray, schedule: BatchSchedule, seed: int) -> Walk:
        """From a schedule: what begins early in it has a high priority. ``price`` [D] adds up to 1."""
        first_s = np.nanmin(schedule.start_s, axis=1)
        priority = np.asarray(float(np.nanmax(schedule.start_s)) - first_s, dtype=np.float64)
        walk = Walk(Dispatcher(problem), moves_of(problem, price), state_of(schedule.device, priority, seed))
        walk.value()
        return walk

    @property
    def can_move(self) -> bool:
        """Whether there is a choice, and the walk stands where all is allowed."""
        return len(self.moves.ops) > 0 and bool(np.isfinite(self.state.value_s[0]))

    @property
    def best_s(self) -> float:
        """The least makespan so far."""
        return float(self.state.value_s[2])

    def value(self) -> None:
        """Time the placement where the walk is."""
        evaluate(self.dispatcher.tables, self.dispatcher.room, self.moves, self.state)

    def run(self, steps: int, heat_s: float) -> None:
        """Go on at one temperature; other threads run meanwhile."""
        anneal(self.dispatcher.tables, self.dispatcher.room, self.moves, self.state, steps, heat_s, WEIGHT)

    def best(self) -> BatchSchedule:
        """The schedule of the least makespan."""
        return self.dispatcher.schedule(self.state.best_device, self.state.best_priority)


def search_sa(incumbent: BatchIncumbent) -> None:
    """Annealing of placements and priorities, from the best of the list schedulers."""
    warm_start(incumbent)
    prices = bounded(incumbent).prices
    if not incumbent.is_closed:
        search_walks(incumbent, prices, ON_OPS, incumbent.left_s)


def search_walks(incumbent: BatchIncumbent, price: FloatArray, cooling: Cooling, seconds: float) -> None:
    """Anneal the best schedule for ``seconds`` at most, in steps that the time is enough for by far.

    The number of steps is that of the budget, not of the machine: where they fit, two runs are equal. Where they do
    not, the clock cools instead. Nothing happens without a schedule to begin with.
    """
    start, problem = incumbent.best, incumbent.problem
    if start is None:
        return
    walks = [Walk.begin(problem, price, start, incumbent.seed + k) for k in range(NUM_WALKS)]
    if not walks[0].can_move:
        return
    most = STEPS_PER_GENE * start.device.size
    steps = min(seconds / (STEP_S * (problem.costs.num_ops + len(problem.costs.edge_src))), most)
    incumbent.hit_limit |= steps < most
    each, begin, makespan_s = max(int(steps / NUM_TEMPERATURES), 1), time.monotonic(), incumbent.best_s
    done, share = 0, 0.0
    with ThreadPoolExecutor(NUM_WALKS) as pool:
        while share < 1.0 and not incumbent.is_closed:
            heat_s = cooling.heat_s(share, makespan_s)
            for running in [pool.submit(walk.run, each, heat_s) for walk in walks]:
                running.result()
            for walk in walks:
                if walk.best_s < incumbent.best_s:
                    incumbent.consider_schedule(walk.best())
            incumbent.num_considered += NUM_WALKS * each
            incumbent.wake()
            done += 1
            share = max(done / NUM_TEMPERATURES, (time.monotonic() - begin) / seconds)
