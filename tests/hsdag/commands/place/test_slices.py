"""Searches in slices: measured, recalibrated and gone on from the best."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hsdag.commands.place.loaded_model import with_costs
from hsdag.commands.place.search import LEAST_SLICE, search_in_slices
from hsdag.commands.place.search_time import SearchTime
from hsdag.commands.place.wanted import Wanted
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.incumbent import Incumbent, Limits, Status
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.objectives import find_objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.search.driver import Driver, Watcher
from hsdag.search.evaluators.base import Score, SearchStopped
from hsdag.search.evaluators.hybrid import HybridEvaluator, HybridSchedule
from hsdag.search.evaluators.recording import Budget, Event
from hsdag.search.options import PlaceOptions
from tests.hsdag.runtime.torch.launches import NUM, Device, costs
from tests.hsdag.runtime.torch.launches import PROBLEM as FREE

pytestmark = pytest.mark.usefixtures("both_ways")
TIME_S = np.where(np.arange(NUM)[:, None] // 4 % 2 == np.arange(2), 1e-3, 3e-3)
PRIOR = costs(1e-6, TIME_S)
BARE = replace(FREE, semantics=Semantics(Execution.SEQUENTIAL))
PROBLEM = replace(with_costs(BARE, PRIOR.costs, np.full(2, np.inf)), ops=PRIOR)


class Climber(Placer[NoOptions]):
    """Flips random stretches of the incumbent, and keeps what it was asked; goes on until it is stopped."""

    name = "climber"

    def __init__(self, most: float = np.inf) -> None:
        super().__init__(NoOptions())
        self.most, self.slices = most, list[Incumbent]()
        self.began_with: list[Plan | None] = []

    def _search(self, incumbent: Incumbent) -> Status:
        self.slices.append(incumbent)
        incumbent.evaluate(incumbent.limits.known or [Plan(np.zeros(NUM, dtype=np.int64))])
        self.began_with.append(incumbent.best)
        rng, done = np.random.default_rng(incumbent.limits.seed), 0
        while done < self.most:
            assert incumbent.best is not None
            first, last = np.sort(rng.integers(0, NUM + 1, 2))
            flipped = incumbent.best.placement.copy()
            flipped[first:last] = 1 - flipped[first:last]
            incumbent.evaluate([Plan(flipped)])
            done += 1
        return Status.FEASIBLE


def searched(
    placer: Climber, budget: Budget, should_stop: Callable[[], bool] = lambda: False, **schedule: int
) -> tuple[Driver, HybridEvaluator]:
    watcher = Watcher(should_stop=should_stop)
    driver = Driver(placer, PROBLEM, Device(time_s=TIME_S), budget, watcher, Limits(num_workers=1, seed=5))
    driver.guess()
    hybrid = HybridEvaluator(PROBLEM, PRIOR, driver.recorder, replace(HybridSchedule.between_slices(), **schedule))
    with contextlib.suppress(SearchStopped):
        search_in_slices(driver, hybrid)
    return driver, hybrid


def test_every_slice_goes_on_from_the_best_plan_under_the_recalibrated_costs() -> None:
    placer = Climber(most=100)
    driver, hybrid = searched(placer, Budget(seconds=60.0))
    measured = [slice_.problem.ops for slice_ in placer.slices]
    assert measured[0] is PRIOR
    assert [slice_.limits.seed for slice_ in placer.slices] == list(range(5, 5 + len(measured)))
    assert hybrid.costs.costs.launch_s.mean() > 100 * PRIOR.costs.launch_s.mean()
    assert all(each is not PRIOR for each in measured[1:])
    assert len({id(each) for each in measured}) == len(measured)
    for slice_, began in zip(placer.slices[1:], placer.began_with[1:], strict=True):
        assert slice_.problem.costs is not None
        assert isinstance(slice_.problem.ops, HeteroCosts)
        assert (slice_.problem.costs.launch_s == slice_.problem.ops.costs.launch_s).all()
        assert began is not None
        assert began.is_split
    assert driver.recorder.best()[0].plan == Plan(np.repeat([0, 1, 0], 4))


def test_a_search_in_slices_ends_when_measuring_finds_nothing_better() -> None:
    placer = Climber(most=100)
    driver, hybrid = searched(placer, Budget(seconds=1e6), patience=2)
    assert hybrid.rounds.has_converged
    assert driver.recorder.num_evaluations < 30


def test_slices_end_a_placer_that_does_not_end_and_leave_time_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on whenever it is read, however busy the machine is."""
    readings = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: 1e-4 * next(readings))
    placer = Climber()
    driver, _ = searched(placer, Budget(seconds=0.5), patience=0)
    spans_s = [slice_.limits.seconds for slice_ in placer.slices]
    assert len(spans_s) > 3
    assert all(span_s >= 0.5 * LEAST_SLICE for span_s in spans_s)
    assert all(2 * span_s <= 0.5 - sum(spans_s[:i]) for i, span_s in enumerate(spans_s))
    assert driver.recorder.best()[0].plan.is_split


@pytest.mark.parametrize(("objective", "value_s"), [("latency", 0.4), ("throughput", 0.8)])
def test_a_search_ends_earlier_where_measuring_takes_longer_so_that_the_comparison_has_its_time(
    objective: str, value_s: float
) -> None:
    """Four candidates take 6.5 s each, and checking the answer 4.9 s."""
    runner = SimpleNamespace(taken=SimpleNamespace(slowest_open_s=0.1, value_s=value_s, part_s=0.0))
    protocol = Protocol(min_rounds=6, limit_s=25.0)
    options = PlaceOptions(objective=find_objective(objective), protocol=protocol)
    session: Any = SimpleNamespace(runner=runner, client=SimpleNamespace(start_s=0.0))
    time = SearchTime(session, options, Watcher(), Wanted(options.budget_s), begin_s=0.0)
    time.left_s = 45.0
    recorder = SimpleNamespace(num_evaluations=2, budget=Budget(45.0, 7))
    time.heed(Event(Plan(np.zeros(1)), Score(1.0), 1.0), recorder)  # type: ignore[arg-type]
    assert (recorder.budget.seconds, recorder.budget.evaluations) == (pytest.approx(60.0 - 4 * 6.5 - 4.9), 7)
    runner.taken.value_s = 0.0
    time.heed(Event(Plan(np.zeros(1)), Score(1.0), 1.0), recorder)  # type: ignore[arg-type]
    assert recorder.budget.seconds == 45.0
