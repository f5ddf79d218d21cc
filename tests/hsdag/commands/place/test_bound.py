"""What could be gained at most: closed forms for chains and branches, and what is said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hsdag.commands.place.bound import least_s, left_to_gain
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of

LAUNCH_S = 0.5


def problem_and_costs(
    edges: list[tuple[int, int]], time_s: Any, *, in_turn: bool = False, **more: Any
) -> tuple[Problem, PlacementCosts]:
    """Of one product for each row of ``time_s`` [N, 2], over links that cost nothing."""
    times = np.array(time_s, dtype=np.float64)
    graph = graph_from_edges(["MatMul"] * len(times), edges, output_bytes=[8] * len(times), flops=[1] * len(times))
    free, fast = np.zeros((2, 2)), np.full((2, 2), np.inf)
    links: dict[str, Any] = {"launch_s": np.full(2, LAUNCH_S), "link_latency_s": free, **more}
    costs = ScheduleProblem.from_graph(graph, times, ("A", "B"), link_bandwidth_bytes_per_s=fast, **links)
    problem = problem_of(costs)
    return problem, HeteroCosts.of(problem.units.fine, costs) if in_turn else OpByOpCosts(costs)


CHAIN, FORK = [(0, 1), (1, 2)], [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("edges", "time_s", "least"),
    [
        (CHAIN, [[1, 1]] * 3, 3.0),  # nothing runs beside it
        (CHAIN, [[1, 2], [2, 1], [1, 2]], 3.0),  # every op where it is quickest
        (FORK, [[1, 1], [2, 2], [2, 2]], 3.0),  # the branches side by side
        ([], [[4, 4]] * 4, 8.0),  # half of the work on each
    ],
)
def test_side_by_side_nothing_is_below_the_longest_path_and_the_shared_load(
    edges: list[tuple[int, int]], time_s: Any, least: float
) -> None:
    assert least_s(*problem_and_costs(edges, time_s)) == pytest.approx(least)


def test_devices_that_slow_each_other_down_share_less() -> None:
    slowdown = np.array([[1.0, 1.5], [1.5, 1.0]])
    assert least_s(*problem_and_costs([], [[4, 4]] * 4, slowdown=slowdown)) == pytest.approx(8.0 * 1.5)


def test_under_hetero_branches_gain_nothing() -> None:
    found = least_s(*problem_and_costs(FORK, [[1, 1], [2, 2], [2, 2]], in_turn=True))
    assert found == pytest.approx(5.0 + LAUNCH_S)


@pytest.mark.parametrize(
    ("least", "answer_s", "said"),
    [
        (1.0, 4.0, "At most 50% of the time could still be gained over A and B"),  # on a machine half as fast as it was
        (2.0, 4.0, "Nothing more could be gained over A and B (simulated)."),
        (0.0, 4.0, ""),
    ],
)
def test_what_is_left_is_said_by_how_fast_the_machine_was_when_it_was_compared(
    least: float, answer_s: float, said: str
) -> None:
    found = left_to_gain(least, {"A": 3.0, "B": 2.0}, {"A": 9.0, "B": 4.0}, answer_s, ["A", "B"])
    assert found.startswith(said)
    assert bool(found) == bool(said)
    assert not left_to_gain(least, {"A": 3.0}, {"B": 4.0}, answer_s, ["A", "B"])
