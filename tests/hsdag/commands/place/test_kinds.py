"""Kinds of answers that are timed once before all else: what is proposed without a profile, and what follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hsdag.commands.place import kinds
from hsdag.commands.place.first_plans import first_splits
from hsdag.commands.place.kinds import Kinds, best_split, rough_profile, timed_kinds
from hsdag.commands.place.preparing import LOST, with_timed
from hsdag.commands.place.session import Session
from hsdag.methods.shards.choice import Sharding
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.messages import Candidate, Opened
from hsdag.runtime.measuring.runner import Taken
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, find_objective
from hsdag.search.driver import Watcher
from hsdag.search.options import PlaceOptions

OPTIONS = PlaceOptions(partition_cpu=2, budget_s=100.0)


@pytest.fixture(scope="module")
def session(tiny_resnet: Path) -> Iterator[Session]:
    with Session(tiny_resnet, resolve_devices(None, 2), executor="work-conserving") as session:
        yield session


class Runner:
    """A runner in which every candidate takes what ``TAKES_S`` says, by its key; it counts what is open at a time."""

    TAKES_S: ClassVar[dict[str, float]] = {"CPU_0": 2e-3, "CPU_1": 2e-3, "CPU": 1e-3, "shards": 5e-3, "split": 1e-2}
    most_open = 0
    taken = Taken(part_s=0.25, values_s=[1e-3])

    def __init__(self, *_: Any) -> None:
        self.candidates: dict[str, Candidate] = {}

    def open(self, key: str, candidate: Candidate) -> Opened:
        self.candidates[key] = candidate
        Runner.most_open = max(Runner.most_open, len(self.candidates))
        return Opened(0.01, 1, ("CPU",))

    def run(self, key: str, runs: int) -> list[float]:
        assert key in self.candidates
        return [self.TAKES_S[key.rpartition(" ")[2]]] * runs

    def close(self, key: str) -> None:
        del self.candidates[key]


@pytest.fixture(name="timed")
def timing(session: Session, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kinds]:
    """Times the kinds with that runner, by options with these changes."""
    monkeypatch.setattr(kinds, "CandidateRunner", Runner)

    def run(watcher: Watcher | None = None, **changes: Any) -> Kinds:
        return timed_kinds(session, replace(OPTIONS, **changes), watcher or Watcher(), time.monotonic())

    return run


def test_the_best_of_each_kind_is_timed_over_the_fastest_device_and_two_are_open_at_a_time(
    timed: Callable[..., Kinds], session: Session
) -> None:
    found = timed()
    assert found.times == {"CPU_0": 2.0, "CPU_1": 2.0, "CPU": 1.0, "shards": 5.0, "split": 10.0}
    assert Runner.most_open == 2
    assert found.sharding is not None
    assert found.split is not None
    assert len(set(found.split.tolist())) == 2
    assert len(found.split) == session.graph.num_ops
    assert session.runner.taken.part_s == Runner.taken.part_s  # what parts took is known from now on


def test_what_would_end_after_a_fifth_of_the_budget_is_left(timed: Callable[..., Kinds]) -> None:
    found = timed(budget_s=1e-9)
    assert (found.times, found.sharding, found.split) == ({}, None, None)
    assert timed(Watcher(should_stop=lambda: True)).times == {}


def test_under_hetero_nothing_is_divided_and_for_another_objective_nothing_is_timed(
    timed: Callable[..., Kinds],
) -> None:
    assert "shards" not in timed(executor="hetero").times
    assert timed(objective=find_objective("memory")).times == {}


def test_a_rough_profile_has_the_latency_of_each_device_and_more_for_ops_that_compute_more(session: Session) -> None:
    profile = rough_profile(session, {"CPU_0": 0.3})
    total_s = [np.nansum(each.time_s) for each in profile.times]
    assert total_s == pytest.approx([0.3, 0.3])  # what is not known of one is taken from the others
    heavy = np.argsort(session.graph.flops)[-3:]
    assert (profile.times[0].time_s[heavy] > np.median(profile.times[0].time_s)).all()


@pytest.mark.parametrize("is_steady", [False, True])
def test_the_split_is_even_where_several_inferences_are_in_flight(session: Session, is_steady: bool) -> None:
    profile = rough_profile(session, {"CPU_0": 1.0, "CPU_1": 1.0})
    problem = session.problem(profile=profile)
    plan = best_split(replace(problem, objective=THROUGHPUT if is_steady else LATENCY), is_steady=is_steady)
    assert plan is not None
    assert plan.is_split
    share = problem.known_costs.time_s[plan.placement == 0, 0].sum() / problem.known_costs.time_s[:, 0].sum()
    assert not is_steady or 0.3 < share < 0.7


SHARDING = Sharding((), (0, 0), 0.9, 0.9)
OTHER = Sharding((), (1, 1), 1.5, 1.5)


@pytest.mark.parametrize(
    ("times", "gains", "expected", "is_said"),
    [
        (0.7, False, [SHARDING, OTHER], False),  # a wrong prediction rules nothing out
        (0.7, True, [OTHER, SHARDING], False),
        (1.4, True, [OTHER], False),
        (1.4, False, [OTHER], False),  # another program may have had a core
        (3.0, True, [OTHER], False),  # the profile knows of a better way
        (3.0, False, [], True),
    ],
)
def test_only_what_was_timed_and_lost_is_left_alone(
    times: float, gains: bool, expected: list[Sharding], is_said: bool
) -> None:
    said = list[str]()
    kinds = Kinds({"shards": times}, sharding=SHARDING)
    assert with_timed([OTHER], 1.0, kinds, said.append, gains=gains) == expected
    assert [LOST in each for each in said] == [True] * is_said


def test_what_had_not_lost_when_it_was_timed_first_is_compared_though_all_lose_when_measured_again() -> None:
    near, lost = (Kinds({"shards": times}, sharding=SHARDING) for times in (0.7, 1.4))
    assert near.believed([]) == [SHARDING]
    assert near.believed([OTHER]) == [OTHER]
    assert lost.believed([]) == []


def test_a_split_that_was_timed_and_has_not_lost_is_measured_by_the_search(session: Session) -> None:
    split = (np.argsort(session.graph.topological_order) >= session.graph.num_ops // 2).astype(np.int64)
    near, lost = (Kinds({"split": times}, split=split) for times in (0.9, 1.2))
    of_kinds = partial(first_splits, session, OPTIONS, session.problem(), profile=None, costs=None)
    (plan,) = of_kinds(near)
    assert plan.is_split
    assert of_kinds(Kinds()) == of_kinds(lost) == []
