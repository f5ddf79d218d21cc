"""What a search begins with and keeps to: starts, first guesses, pins and memory; and what is told of turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import hsdag
from hsdag.base.errors import OptionError, PlacementError
from hsdag.commands.sources import find_family
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.driver import Driver, Member, Watcher, members_table, shortage
from hsdag.search.evaluators.base import Evaluator, Score
from hsdag.search.evaluators.recording import Budget
from hsdag.search.options import SolveOptions
from hsdag.search.solution import SolveResult
from hsdag.search.solve import solve

# on d0 all three ops take 1 s each, on d1 2 s each; links are free
CHAIN = ScheduleProblem.from_arrays([[1.0, 2.0]] * 3, [(0, 1), (1, 2)], weight_bytes=10.0, output_bytes=0.0)


@pytest.mark.parametrize("method", ["auto", "heft", "sa", "cpsat", "random"])
def test_every_method_keeps_pins(method: str) -> None:
    found = hsdag.solve(CHAIN, method, pins=["op1=d1"], max_evaluations=50, budget="5s")
    assert found.affinity is not None
    assert found.affinity["op1"] == "d1"
    assert found.value is not None
    assert found.lower_bound <= found.value
    assert found.value >= 4.0  # 1 + 2 + 1


def test_single_devices_that_break_a_pin_are_simulated_and_named() -> None:
    found = hsdag.solve(CHAIN, "met", pins=["op1=d1"])
    assert found.single_devices == {"d0": 3.0, "d1": 6.0}
    assert found.breaking == ("d0",)
    assert found.model_dump(by_alias=True)["breaking_pins"] == ("d0",)
    assert hsdag.solve(CHAIN, "met", pins=["op1=d1"], memory="d0=20").single_devices == {"d1": 6.0}


def test_memory_takes_the_place_of_the_problems_own() -> None:
    found = hsdag.solve(CHAIN, "cpsat", memory="d0=20", budget="60s")
    assert found.affinity is not None
    assert found.run is not None
    assert found.run.peak_memory_bytes[0] <= 20
    assert sorted(found.affinity.values()) == ["d0", "d0", "d1"]
    assert found.single_devices == {"d1": 6.0}
    assert hsdag.solve(CHAIN, "met", memory="d0=20,d1=20").value is not None  # weights are packed first
    assert hsdag.solve(CHAIN, "cpsat", memory="d0=9,d1=9", budget="60s").status.value == "infeasible"


def test_limits_that_do_not_fit_the_problem_are_refused() -> None:
    with pytest.raises(OptionError, match="memory names device 'gpu'; the devices are d0, d1"):
        hsdag.solve(CHAIN, "met", memory="gpu=1GB")
    with pytest.raises(OptionError, match="no op's name matches 'op9'"):
        hsdag.solve(CHAIN, "met", pins=["op9=d0"])
    with pytest.raises(PlacementError, match="has op 'op1' on d0, which pins forbids"):
        hsdag.solve(CHAIN, "met", pins=["op1=d1"], start=dict.fromkeys(CHAIN.op_names, "d0"))


PROBLEM = find_family("random-wired").problem(3)


@pytest.fixture(scope="module")
def best() -> SolveResult:
    return solve(PROBLEM, make_placer("auto", is_cheap=True), SolveOptions("auto", budget_s=60.0, max_evaluations=600))


@pytest.mark.parametrize("method", ["sa", "doppler", "auto"])
def test_a_search_begins_with_the_start_and_the_answer_is_not_worse(method: str, best: SolveResult) -> None:
    assert best.plan is not None
    assert best.value is not None
    few = SolveOptions(method, budget_s=60.0, max_evaluations=PROBLEM.num_devices + 1)
    begun = replace(few, start=best.plan)
    placer = make_placer(method, is_cheap=True)
    values = [solve(PROBLEM, placer, each).value for each in (few, begun, replace(begun, max_evaluations=1))]
    assert values[1:] == [best.value, best.value]
    assert (values[0] or 0.0) > best.value


def test_a_start_that_fails_is_told() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, 1.0]] * 2, [], weight_bytes=[9.0, 9.0], memory_bytes=10.0)
    told: list[str] = []
    options = SolveOptions("heft", start=Plan(np.array([0, 0])))
    assert solve(problem, make_placer("heft"), options, Watcher(on_phase=told.append)).value == 1.0
    assert any(line.startswith("the placement to start with fails: ") for line in told)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ([1, 1], r"has op 'op0' on d1, which does not support it$"),
        ([0, 1], "op 'op0' on another device than the rest of its set"),
    ],
)
def test_a_start_that_is_illegal_or_splits_a_colocation_set_is_refused(start: list[int], said: str) -> None:
    plain = ScheduleProblem.from_arrays([[1.0, np.nan], [1.0, 1.0]], [(0, 1)])
    problem = replace(plain, labels=replace(plain.labels, colocate=("s", "s")))
    with pytest.raises(PlacementError, match=said):
        solve(problem, make_placer("heft"), SolveOptions("heft", start=Plan(np.array(start))))


class FailsWhereSplit(Evaluator):
    """A slow one."""

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        return [Score(failure="broken") if plan.is_split else Score(1.0) for plan in plans]


def test_first_what_is_known_and_then_single_devices_are_evaluated_as_far_as_legal_and_within_memory() -> None:
    """d0 has no memory for both ops, and d2 lacks one of them."""
    times, memory = [[1.0, 1.0, np.nan], [1.0] * 3], [5.0, 20.0, 20.0]
    problem = problem_of(ScheduleProblem.from_arrays(times, [], weight_bytes=5.0, memory_bytes=memory))
    known, told = Plan(np.array([0, 1])), list[str]()
    watcher = Watcher(on_note=told.append)
    driver = Driver(make_placer("met"), problem, FailsWhereSplit(), Budget(), watcher, Limits(known=(known,)))
    alone = driver.guess([Plan(np.array([1, 0])), Plan(np.array([2, 1]))])
    assert [event.plan.placement.tolist() for event in driver.recorder.events] == [[0, 1], [1, 1], [1, 0]]
    assert [event.plan.placement.tolist() for event in alone] == [[1, 1]]
    assert told == ["the placement to start with fails: broken"]


def turn(method: str, began_s: float, ended_s: float, values: tuple[float | None, float], **more: object) -> Member:
    known = {"before": values[0], "after": values[1], "bound": None, "status": None, "failure": None} | more
    return Member.model_validate({"method": method, "began_s": began_s, "ended_s": ended_s} | known)


def test_a_method_is_listed_with_the_seconds_of_all_its_turns_its_last_gain_and_its_best_bound() -> None:
    turns = [
        turn("sa", 1, 2, (None, 0.004), bound=0.001),
        turn("ea", 2, 4, (0.004, 0.004)),
        turn("ga", 2, 2.5, (0.004, 0.004)),
        turn("sa", 4, 5.5, (0.004, 0.003), bound=0.002),
        turn("sa", 6, 7, (0.003, 0.005), failure="late"),
    ]
    assert members_table(turns, LATENCY)[1] == [["sa", "3.5", "3", "5.5", "2", "late"], ["ea, ga", "2.5", *"---", ""]]


def test_a_budget_is_short_where_fewer_than_ten_placements_can_be_measured_and_a_sufficient_one_is_named() -> None:
    assert shortage(1.2, 12.0) is None
    assert shortage(6.0, 12.0) == ("only 12 s are left, and each placement takes 6 s", 48.0)
    assert "only 0 s are left" in str(shortage(6.0, -1.0))
