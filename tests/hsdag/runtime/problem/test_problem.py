"""Problems and plans: what is refused, what a method sees, which semantics an objective takes, and levels of ops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hsdag.base.errors import OptionError
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.objectives import ENERGY, LATENCY, THROUGHPUT
from hsdag.runtime.problem.plan import Plan, op_priority, unit_priority
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import LinkSharing, Order, Semantics
from hsdag.runtime.problem.tables import lengths_of, levels_of, mean_transfers, op_features, paper_features, tables_of
from hsdag.runtime.problem.units import problem_of

TWO = ScheduleProblem.from_arrays([[0.0, 2.0], [3.0, np.nan]], [(0, 1)], output_bytes=[3, 5], power_w=[1.0, np.nan])


def test_an_edge_carries_what_its_producer_gives_and_a_number_fills_a_table() -> None:
    problem = ScheduleProblem.from_arrays(np.ones((2, 3)), [(0, 1)], output_bytes=[3, 5], launch_s=2)
    assert (problem.edge_bytes.tolist(), problem.launch_s.tolist()) == ([3.0], [2.0] * 3)
    assert (problem.link_bandwidth_bytes_per_s.min(), problem.memory_bytes.min()) == (np.inf, np.inf)
    assert (problem.op_names, problem.device_names) == (("op0", "op1"), ("d0", "d1", "d2"))
    assert problem.slowdown is None
    assert np.isnan(problem.power_w).all()
    assert problem.device_records[2] == DeviceSpec("d2", "d2")
    assert problem.canonical_names == problem.op_names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_bytes": np.ones(3)}, r"output_bytes of problem 'problem' must be \(2,\), not \(3,\)"),
        ({"devices": (DeviceSpec("x", "x"), DeviceSpec("d1", "d1"))}, "must be those of its device names, in order"),
        ({"edge_src": np.array([-1])}, "an edge of problem 'problem' leaves the graph"),
        ({"edge_dst": np.array([-1])}, "leaves the graph"),
        ({"edge_src": np.array([2])}, "leaves the graph"),
        ({"edge_dst": np.array([2])}, "leaves the graph"),
        ({"output_bytes": np.array([-1.0, 1.0])}, "output_bytes of problem 'problem' must be finite and not negative"),
        ({"time_s": np.array([[1.0, np.inf], [1.0, 1.0]])}, "time_s of problem 'problem' must be finite"),
        ({"power_w": np.array([1.0, np.inf])}, "power_w of problem 'problem' must be finite"),
        ({"link_bandwidth_bytes_per_s": np.array([[0.0, 1.0], [0.0, 0.0]])}, "must be positive"),
        ({"memory_bytes": np.array([1.0, -1.0])}, "memory_bytes of problem 'problem' must not be negative"),
        ({"time_s": np.array([[1.0, np.nan], [np.nan, np.nan]])}, "op 'op1' of problem 'problem' runs on no device"),
        ({"topological_order": np.array([0, 0])}, "is not a permutation of its ops"),
        ({"topological_order": np.array([1, 0])}, "puts a consumer before its producer"),
        ({"edge_src": np.array([1])}, "puts a consumer before its producer"),
        ({"slowdown": np.ones((1, 1))}, "slowdown of problem 'problem' must be"),
        ({"slowdown": np.array([[1, 0.5], [1, 1]])}, "slowdown must be finite and at least 1"),
        ({"slowdown": np.array([[1, 2.0], [np.inf, 1]])}, "slowdown must be finite and at least 1"),
    ],
)
def test_tables_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TWO, **change)


@pytest.mark.parametrize(("times", "edges"), [(np.ones((0, 2)), []), (np.ones((2, 0)), []), ([1.0], [])])
def test_a_problem_has_ops_and_devices(times: Any, edges: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"needs at least one op and one device|must be a table of ops by devices"):
        ScheduleProblem.from_arrays(times, edges)


def test_memory_of_0_and_slow_downs_of_1_are_taken() -> None:
    assert replace(TWO, memory_bytes=np.zeros(2), slowdown=np.ones((2, 2))).excess.shape == (0, 0)
    assert replace(TWO, slowdown=np.array([[9.0, 1.0], [2.0, 9.0]])).excess.tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_all_results_that_an_op_reads_of_another_are_sent_as_the_sum_of_their_largest_edges() -> None:
    ends = [(0, 1), (0, 1), (0, 1), (0, 2)]
    several = ScheduleProblem.from_arrays(np.ones((3, 1)), ends, edge_bytes=[2, 7, 4, 9], edge_port=[0, 0, 1, 1])
    single = several.with_single_results
    tables = single.edge_dst, single.edge_bytes, single.edge_port
    assert [table.tolist() for table in tables] == [[1, 2], [11, 9], [0, 0]]


def test_objectives_ask_for_power_and_for_links_that_they_are_defined_under() -> None:
    TWO.check(LATENCY)
    replace(TWO, power_w=np.ones(2)).check(ENERGY)
    for problem, name in ((TWO, "d1"), (replace(TWO, power_w=np.full(2, np.nan)), "d0")):
        with pytest.raises(OptionError, match=f"device '{name}' of problem 'problem' has none: give it a power_w"):
            problem.check(ENERGY)
    Semantics(links=LinkSharing.BLOCKING).check(THROUGHPUT)
    Semantics(links=LinkSharing.CHANNEL).check(LATENCY)
    with pytest.raises(OptionError, match="links blocking is for objective throughput only"):
        Semantics(links=LinkSharing.BLOCKING).check(LATENCY)
    assert [Semantics(order=order).named()["order"] for order in (None, Order.RANDOM)] == ["fifo", "random"]


def test_plans_are_equal_where_placement_and_order_are_and_cannot_be_changed() -> None:
    placement = np.array([0, 1, 0])
    plan, other = Plan(placement, np.array([2, 0, 1])), Plan(np.array([0, 1, 0]), np.array([2, 0, 1]))
    placement[0] = 1
    assert plan == other != plan.unordered
    assert len({plan, other, plan.unordered, Plan(np.array([0, 1, 0])), Plan(placement)}) == 3
    assert [plan.is_split, Plan(np.ones(2, dtype=np.int64)).is_split] == [True, False]
    assert plan.unordered.unordered is plan.unordered
    assert [repr(plan), repr(plan.unordered)] == ["Plan([0, 1, 0], [2, 0, 1])", "Plan([0, 1, 0])"]
    with pytest.raises(ValueError, match="read-only"):
        plan.placement[0] = 1
    for wrong in ((np.zeros((1, 1)),), (np.zeros(2), np.zeros(1))):
        with pytest.raises(ValueError, match="one device per unit"):
            Plan(*wrong)


def test_ranks_of_units_become_ranks_of_ops_in_topological_order_and_back() -> None:
    problem = ScheduleProblem.from_arrays(np.ones((4, 1)), [(3, 0), (0, 1)])
    priority, unit_of_op = op_priority(problem, np.array([1, 0, 0, 1]), np.array([7, 2])), np.array([1, 0, 0, 1])
    assert np.argsort(priority).tolist() == [3, 0, 2, 1]
    assert unit_priority(unit_of_op, priority).tolist() == [1, 0]


def test_a_problem_is_simulated_by_its_ops_where_they_are_known_else_by_its_units() -> None:
    labels = replace(OpLabels.empty(3), colocate=("s", "", "s"))
    times = [[1.0, 2.0], [3.0, np.nan], [4.0, 5.0]]
    problem = problem_of(ScheduleProblem.from_arrays(times, [(0, 1)], labels=labels))
    table, unit = problem.simulated
    assert (table.num_ops, unit.tolist()) == (3, problem.units.partition.labels.tolist())
    table, unit = replace(problem, ops=None).simulated
    assert (table.num_ops, unit.tolist()) == (2, [0, 1])
    with pytest.raises(ValueError, match="a problem without costs cannot be simulated"):
        replace(problem, ops=None, costs=None).simulated  # noqa: B018
    together, alone = (int(problem.units.partition.labels[v]) for v in (0, 1))
    away = np.ones(2, dtype=np.int64)
    assert problem.nearest(away).placement[[together, alone]].tolist() == [1, 0]
    assert [problem.is_legal(away), problem.is_legal(problem.nearest(away).placement)] == [False, True]
    for change, message in (
        ({"supported": np.ones((1, 2), dtype=np.bool_)}, r"supported must be \[2, 2\]"),
        ({"supported": np.array([[True, True], [False, False]])}, r"unit 1 \(op1\) runs on no device"),
        ({"costs": table.from_arrays(np.ones((3, 2)), [])}, r"costs must be \(2, 2\), not \(3, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(problem, **change)


DIAMOND = ScheduleProblem.from_arrays(
    [[2.0, 4.0], [np.nan, 3.0], [5.0, 7.0], [1.0, 1.0]], [(0, 1), (0, 2), (1, 3), (2, 3)], output_bytes=[8, 4, 2, 0],
    link_latency_s=[[9.0, 1.0], [3.0, 9.0]], link_bandwidth_bytes_per_s=[[1.0, 2.0], [4.0, 1.0]],
)  # fmt: skip
"""Ops of 3, 3, 6, and 1 s in the mean; transfers of 2 s and 3/8 s a byte: 5, 5, 3.5 and 2.75 s."""


def test_levels_are_paths_at_mean_costs() -> None:
    tables = tables_of(DIAMOND)
    levels = levels_of(tables)
    assert levels.upward_s.tolist() == [3 + 5 + 9.75, 3 + 3.5 + 1, 6 + 2.75 + 1, 1]
    assert levels.downward_s.tolist() == [0, 8, 8, 8 + 6 + 2.75]
    assert levels.static_s.tolist() == [10, 4, 7, 1]
    assert levels.heaviest.tolist() == [2, 3, 3, -1]
    assert lengths_of(tables) == (13 / 2, 13 / 4)
    nothing = tables_of(replace(DIAMOND, time_s=np.zeros((4, 2))))
    assert lengths_of(nothing) == (1.0, 1.0)
    alone = tables_of(ScheduleProblem.from_arrays(np.zeros((2, 1)), [(0, 1)], link_latency_s=1.0))
    assert mean_transfers(alone, np.ones(1)).tolist() == levels_of(alone).upward_s.tolist()[:1] == [0.0]


def test_features_are_times_in_units_of_the_mean_op_and_shares_of_the_longest_path() -> None:
    tables = tables_of(DIAMOND)
    levels = levels_of(tables)
    raw = [[3, 0, 10, 17.75, 3], [3, 5, 3.5, 7.5, 11], [6, 5, 2.75, 9.75, 14], [1, 6.25, 0, 1, 17.75]]
    assert paper_features(tables, levels).tolist() == raw
    found = op_features(tables, levels)
    np.testing.assert_allclose(found[:, :5], np.log1p(np.array(raw) / 3.25))
    np.testing.assert_allclose(found[:, 5:7], np.log1p([[0, 2], [1, 1], [1, 1], [2, 0]]))
    assert found[:, 7].tolist() == [1.0, 0.5, 1.0, 1.0]
    np.testing.assert_allclose(found[:, 8], np.log([4.00325 / 2.00325, 1, 7.00325 / 5.00325, 1]), atol=1e-12)
    ways = np.array([[17.75, 0, 17.75, 10], [7.5, 8, 15.5, 4], [9.75, 8, 17.75, 7], [1, 16.75, 17.75, 1]])
    np.testing.assert_allclose(found[:, 9:], ways / 17.75)
