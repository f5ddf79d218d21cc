"""Min-cut over many devices: few pairs are cut, the promising ones, and time that is over ends the cuts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hsdag.methods import memory_repair
from hsdag.methods.cuts import alpha_expansion, cut_graph, memory_prices
from hsdag.methods.cuts.alpha_expansion import MAX_PAIRS, MAX_STARTS, best_cut, cheapest
from hsdag.methods.cuts.cut_graph import BoundaryCosts, _add, _Arcs, _Hyperedge
from hsdag.methods.cuts.mincut import MincutPlacer
from hsdag.methods.incumbent import Limits, Result, Status
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.searches import heard, tight

NUM_DEVICES, SEQUENTIAL = 20, Semantics(Execution.SEQUENTIAL)


def costs_of(num_ops: int = 30) -> BoundaryCosts:
    """The first half is fast on one of twenty devices, the second on another, and every other op fastest on a third."""
    time_s = np.full((num_ops, NUM_DEVICES), 2.0)
    time_s[::2, 0] = 0.9
    time_s[: num_ops // 2, 7] = time_s[num_ops // 2 :, 13] = 1.0
    return BoundaryCosts.of(ScheduleProblem.from_arrays(time_s, chain(num_ops), output_bytes=1.0, link_latency_s=0.5))


def chain(num_ops: int) -> list[tuple[int, int]]:
    return [(v, v + 1) for v in range(num_ops - 1)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The pairs that are cut, in turn, and the moves to a device as (-1, device)."""
    made: list[tuple[int, int]] = []
    pair_cut, best_move = cut_graph.pair_cut, cut_graph.best_move

    def cut(costs: BoundaryCosts, one: int, other: int) -> Any:
        made.append((one, other))
        return pair_cut(costs, one, other)

    def move(costs: BoundaryCosts, placement: Any, target: int) -> Any:
        made.append((-1, target))
        return best_move(costs, placement, target)

    monkeypatch.setattr(alpha_expansion, "pair_cut", cut)
    monkeypatch.setattr(alpha_expansion, "best_move", move)
    return made


def test_of_many_devices_the_pairs_that_could_be_cheapest_are_cut(calls: list[tuple[int, int]]) -> None:
    costs = costs_of()
    assert costs.cost_s(best_cut(costs)) == 30 * 1.0 + 0.5
    pairs = [each for each in calls if each[0] >= 0]
    assert pairs[0] == (7, 13)
    assert len(pairs) == MAX_PAIRS < NUM_DEVICES * (NUM_DEVICES - 1) // 2


def test_all_pairs_of_few_devices_are_cut(calls: list[tuple[int, int]]) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((5, 8)), chain(5), output_bytes=1.0)
    best_cut(BoundaryCosts.of(problem))
    assert len({each for each in calls if each[0] >= 0}) == MAX_PAIRS


@pytest.mark.parametrize("most", [0, 1, 5, MAX_PAIRS + 3])
def test_cuts_end_where_time_is_over_with_the_best_so_far(calls: list[tuple[int, int]], most: int) -> None:
    costs = costs_of()
    found = list(cheapest(costs, lambda: len(calls) >= most))
    assert len(calls) == most
    assert (costs.cost_s(found[-1]) == 30 * 1.0 + 0.5) == (most > 0)


def test_a_search_whose_time_is_over_still_evaluates_what_it_has_cut(calls: list[tuple[int, int]]) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((40, NUM_DEVICES)), chain(40), output_bytes=1.0)
    units = problem_of(problem, semantics=SEQUENTIAL)
    result = MincutPlacer().search(units, ScheduleEvaluator(problem, SEQUENTIAL), Limits(seconds=0.0))
    assert result.plan is not None
    assert len(calls) <= MAX_STARTS


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize(("fixed_s", "slope_s"), [(1.0, 2.0), (5.0, -1.0), (-2.0, 1.0), (1.0, -1.0), (-1.0, -1.0)])
def test_the_least_cut_of_a_hyperedge_costs_what_its_dearest_cut_member_costs(
    fixed_s: float, slope_s: float, forward: bool
) -> None:
    sizes, hub, first_center = np.array([4.0, 4.0, 3.0, 1.0]), 4, 5
    arcs = _Arcs(np.empty(40, dtype=np.int64), np.empty(40, dtype=np.int64), np.empty(40),
                 np.array([0, first_center]), np.zeros(1))  # fmt: skip
    readers: Any = SimpleNamespace(size_bytes=sizes, reader=np.arange(4))
    _add.py_func(arcs, readers, _Hyperedge(hub, forward, fixed_s, slope_s), np.arange(4), np.arange(5))  # type: ignore[attr-defined]
    least_s = max(0.0, fixed_s + slope_s * 1.0)
    for cut in itertools.product([False, True], repeat=4):  # members on the other side than the hub
        costs_s = []
        for centers in itertools.product([False, True], repeat=int(arcs.counts[1]) - first_center):
            away = np.array([*cut, False, *centers])
            from_node, to_node = (arcs.tail, arcs.head) if forward else (arcs.head, arcs.tail)
            n = int(arcs.counts[0])
            costs_s.append(arcs.capacity_s[:n][~away[from_node[:n]] & away[to_node[:n]]].sum())
        dearest_s = max((max(least_s, fixed_s + slope_s * size) for size in sizes[list(cut)]), default=0.0)
        assert min(costs_s) == pytest.approx(dearest_s)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for every cut, expansion, and simulated peak that pricing asks for."""
    made: list[str] = []

    def counted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def noted(*given: object) -> object:
            made.append(name)
            return function(*given)

        return noted

    for name in ("best_cut", "expanded"):
        monkeypatch.setattr(memory_prices, name, counted("cut", getattr(memory_prices, name)))
    monkeypatch.setattr(memory_prices, "repaired", counted("repair", memory_repair.repaired))
    return made


def without_time(problem: ScheduleProblem) -> Result:
    """The end of a cut that has no time for anything but its first candidates."""
    units, evaluator = problem_of(problem, LATENCY, SEQUENTIAL), ScheduleEvaluator(problem, SEQUENTIAL)
    return MincutPlacer().search(units, evaluator, Limits(seconds=0.0))


def test_a_cut_within_memory_looks_for_no_price_when_its_time_is_over(steps: list[str]) -> None:
    problem = tight()
    MincutPlacer().search(problem_of(problem, LATENCY, SEQUENTIAL), ScheduleEvaluator(problem, SEQUENTIAL))
    assert steps.count("cut") > 20
    steps.clear()
    assert "no placement that fits into memory" in without_time(tight(250, 20)).note
    assert len(steps) <= 1


@pytest.mark.parametrize("most", [0, 5, 30])
def test_a_cut_within_memory_hears_a_stop_between_two_steps(steps: list[str], most: int) -> None:
    problem = tight()
    result = MincutPlacer().search(problem_of(problem, LATENCY, SEQUENTIAL), heard(problem, most, SEQUENTIAL))
    assert result.status is Status.TIME_LIMIT
    assert len(steps) <= 2 * most + 2
