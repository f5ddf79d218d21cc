"""Explanations of placements whose costs are known: closed forms, brute force, and sums that must agree.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hsdag.commands.explain.explain import Case, _devices_of
from hsdag.commands.explain.explanation import Explanation
from hsdag.commands.place.loaded_model import with_costs
from hsdag.commands.place.records import PlanRecord, Row, Verdict
from hsdag.commands.place.result import PlaceResult
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.placement.placement import ExecutorName, LatencyRecord, ModelRecord, Placement, ShardRecord
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.problem.pins import NOT_PINNED, with_pins
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate

LAUNCH_S, LATENCY_S, BYTES_PER_S = 0.5, 0.25, 100.0
CHAIN = graph_from_edges(
    ["Parameter", "MatMul", "MatMul", "MatMul", "MatMul", "Result"],
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)],
    output_bytes=[0, 10, 20, 30, 0, 0],
    flops=[0, 1, 1, 1, 1, 0],
)
CHAIN_S = np.array([[0, 0], [1, 3], [1, 3], [3, 1], [3, 1], [0, 0]], dtype=np.float64)
FORK = graph_from_edges(
    ["Parameter", "MatMul", "MatMul", "MatMul", "Add", "Result"],
    [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)],
    output_bytes=[0, 10, 20, 30, 0, 0],
    flops=[0, 1, 1, 1, 1, 0],
)


def costs_of(graph: ComputationGraph, time_s: np.ndarray, **more: Any) -> ScheduleProblem:
    """Between submodels on one device tensors take 0.7 of the time."""
    d = time_s.shape[1]
    scale = np.where(np.eye(d, dtype=np.bool_), 0.7, 1.0)
    links: dict[str, Any] = {"link_latency_s": LATENCY_S * scale, "link_bandwidth_bytes_per_s": BYTES_PER_S / scale}
    return ScheduleProblem.from_graph(graph, time_s, launch_s=LAUNCH_S, **links, source=CostSource.MEASURED, **more)


def case_of(
    graph: ComputationGraph, devices: str, time_s: np.ndarray, executor: ExecutorName = "hetero", **more: Any
) -> Case:
    placement = Placement(
        model=ModelRecord.of(graph),
        devices=[DeviceSpec(name, "CPU", {"INFERENCE_NUM_THREADS": str(n)}) for n, name in enumerate("ABC", 1)],
        affinity=dict(zip(graph.canonical_names, devices, strict=True)),
        method="auto",
        seed=0,
        objective="latency",
        executor=executor,
        latency=LatencyRecord(median_s=10.0, mean_s=10.0, p95_s=10.0, runs=6, measured=True),
    )
    kinds: dict[str, Any] = {"hetero": HeteroCosts, "work-conserving": WorkConservingCosts, "cuda": OpByOpCosts}
    units, d = placement_units(graph), time_s.shape[1]
    plain = Problem(units, tuple("ABC"[:d]), np.ones((units.graph.num_ops, d), dtype=np.bool_))
    problem = with_costs(plain, costs_of(graph, time_s), np.full(d, np.inf))
    return Case(problem, kinds[executor].of(graph, costs_of(graph, time_s, **more)), placement, executor)


def test_the_value_and_each_move_are_what_the_sums_say_the_largest_gain_first() -> None:
    found = case_of(CHAIN, "AAABBB", CHAIN_S).explained()
    assert (found.value.measured, found.value.calibrated) == (10.0, False)
    crossing_s = LATENCY_S + 20 / BYTES_PER_S
    assert found.value.simulated is not None
    assert found.value.simulated == pytest.approx(4 + 2 * LAUNCH_S + crossing_s)
    moved = {gain.op: gain.moved for gain in found.gains}
    assert moved["op2"] == pytest.approx(6 + 2 * LAUNCH_S + LATENCY_S + 10 / BYTES_PER_S)
    assert moved["op3"] == pytest.approx(6 + 2 * LAUNCH_S + LATENCY_S + 30 / BYTES_PER_S)
    assert all(gain.gain == pytest.approx(gain.moved - found.value.simulated) for gain in found.gains)
    assert [limit.name for limit in found.limits if limit.kind == "transfers"] == [""]  # over a single link
    gains = found.gains
    assert [gain.gain for gain in gains] == sorted((gain.gain for gain in gains), reverse=True)
    assert {(gain.device, gain.other) for gain in gains} == {("A", "B"), ("B", "A")}
    assert sorted(op for gain in gains for op in gain.ops) == sorted(CHAIN.op_names)


def test_what_limits_a_placement_in_turn_adds_up_to_all_of_it() -> None:
    found = case_of(CHAIN, "AABABB", CHAIN_S).explained()
    whole = [limit for limit in found.limits if limit.kind != "transfers" or not limit.name]
    assert sum(limit.gain for limit in whole) == pytest.approx(1.0)
    assert sum(limit.seconds for limit in whole) == pytest.approx(found.value.simulated)
    pairs = {limit.name: limit.gain for limit in found.limits if limit.kind == "transfers"}
    assert pairs[""] == pytest.approx(pairs["A to B"] + pairs["B to A"])


def test_no_placement_is_below_the_bound_of_a_chain() -> None:
    case = case_of(CHAIN, "AAAABB", CHAIN_S)
    found = case.explained()
    assert found.bound is not None
    units = [np.array(each) for each in itertools.product((0, 1), repeat=case.problem.num_units)]
    assert case.costs is not None
    best_s = min(case.costs.latency_s(case.problem.expand(np.stack(units))))
    assert found.bound.value <= best_s * (1 + 1e-9)
    assert found.bound.value > 0.8 * best_s
    assert found.bound.gap == pytest.approx(1 - found.bound.value / (found.value.simulated or 0.0))


def test_what_limits_parts_that_run_side_by_side_are_their_devices_launches_and_transfers() -> None:
    time_s = np.array([[0, 0], [1, 1], [4, 4], [4, 4], [1, 1], [0, 0]], dtype=np.float64)
    found = case_of(FORK, "AAABAA", time_s, "work-conserving").explained()
    limits = {(limit.kind, limit.name): limit.seconds for limit in found.limits}
    assert limits["work", "A"] == pytest.approx(6)
    assert limits["work", "B"] == pytest.approx(4)
    assert {kind for kind, _ in limits} == {"work", "launches", "transfers"}
    moved = next(gain for gain in found.gains if gain.op == "op3")
    assert moved.moved >= 10  # all work on one device


@pytest.mark.parametrize("executor", ["work-conserving", "cuda"])
def test_devices_that_slow_each_other_down_are_a_limit_where_they_do(executor: ExecutorName) -> None:
    types, taken = ["Parameter", "Parameter", "MatMul", "MatMul", "Result", "Result"], []
    graph = graph_from_edges(types, [(0, 2), (1, 3), (2, 4), (3, 5)], flops=[0, 0, 1, 1, 0, 0])
    for factor in (1.0, 2.0):
        slowdown = np.array([[1.0, factor], [factor, 1.0]])
        found = case_of(graph, "ABABAB", np.full((6, 2), 4.0), executor, slowdown=slowdown).explained()
        taken.append(found.value.simulated or 0.0)
        lost = [limit.seconds for limit in found.limits if limit.kind == "slow-downs"]
        assert lost == ([] if factor == 1.0 else [pytest.approx(taken[1] - taken[0])])
    assert taken[0] < taken[1]


def test_a_region_takes_as_long_as_the_device_that_takes_longest_for_its_share() -> None:
    shares = {"A": (0, 1), "B": (1, 4)}
    for scheme, divided_s in (("rows", 0.75 * 6), ("replicated", 6.0)):
        record = ShardRecord.model_validate({"scheme": scheme, "ops": ("op1", "op2"), "shares": shares})
        case = case_of(CHAIN, "AAAAAA", CHAIN_S)
        case = replace(case, placement=case.placement.model_copy(update={"shards": (record,)}))
        found = case.explained()
        (region,) = found.regions
        assert (region.first, region.last, region.num_ops, region.shares) == ("op1", "op2", 2, {"A": 0.25, "B": 0.75})
        assert (region.whole_s, region.divided_s, found.notes) == (2.0, divided_s, ())
    bare = replace(case, costs=None).explained()
    assert (bare.regions[0].whole_s, len(bare.notes)) == (None, 1)


@pytest.mark.parametrize("devices", ["AAABAA", "ABAABB"])
def test_op_by_op_the_value_is_the_simulators_and_free_transfers_gain_what_they_take(devices: str) -> None:
    case = case_of(FORK, devices, np.ones((6, 2)), "cuda")
    found = case.explained()
    assert isinstance(case.costs, OpByOpCosts)
    placed = np.array(["AB".index(device) for device in devices])
    own = case.costs.costs
    free = replace(own, link_latency_s=np.zeros((2, 2)), link_bandwidth_bytes_per_s=np.full((2, 2), np.inf))
    makespan_s, without_s = (simulate(problem, placed).makespan_s for problem in (own, free))
    assert found.value.simulated == pytest.approx(makespan_s)
    gains = {limit.kind: limit.gain for limit in found.limits if limit.kind == "transfers"}
    assert gains.get("transfers", 0.0) == pytest.approx(1 - without_s / makespan_s)


def test_a_placement_is_explained_by_the_order_that_it_gives() -> None:
    """B waits for what A takes a second for, and four seconds longer where A runs another product first."""
    edges = [(0, 1), (0, 2), (2, 3), (1, 4), (3, 4), (4, 5)]
    graph = graph_from_edges(FORK.op_types, edges, output_bytes=[0, 10, 20, 30, 0, 0], flops=FORK.flops.tolist())
    case = case_of(graph, "AAABAA", np.array([[0.0, 9], [4, 9], [1, 9], [9, 4], [1, 9], [0, 9]]), "cuda")
    took_s = []
    for priority in ((0, 1, 2, 3, 4, 5), (0, 2, 1, 3, 4, 5)):
        ordered = case.placement.model_copy(
            update={"priority": dict(zip(graph.canonical_names, priority, strict=True))}
        )
        found = replace(case, placement=ordered).explained()
        assert found.value.simulated is not None
        assert found.gains
        took_s.append(found.value.simulated)
    assert took_s[0] - took_s[1] == pytest.approx(4)


def test_the_other_device_of_a_unit_is_the_next_best_of_those_with_memory_for_it() -> None:
    gains = case_of(CHAIN, "AAAAAA", np.array([[1.0, 5.0, 3.0]] * 6)).explained().gains
    assert {gain.other for gain in gains} == {"C"}
    graph = replace(CHAIN, weight_bytes=np.array([0, 5, 5, 5, 5, 0]))
    case = case_of(graph, "AAABBB", CHAIN_S)
    free = case.explained().gains
    costs = case.problem.costs
    assert costs is not None
    full = replace(case, problem=replace(case.problem, costs=replace(costs, memory_bytes=np.array([41.0, np.inf]))))
    assert {gain.other for gain in free} == {"A", "B"}
    assert {gain.other for gain in full.explained().gains} == {"B"}


def measured_case(
    devices: str,
    answer: str,
    samples_s: tuple[float, ...],
    *,
    turned_down: str = "",
    pinned: bool = False,
    alike: bool = False,
) -> Explanation:
    """A search that timed two placements, A and B; where that is said, the first product was ``pinned`` to A.

    Or A and B are ``alike``.
    """
    case = case_of(CHAIN, devices, CHAIN_S)
    if alike:
        halves = [DeviceSpec(name, "CPU", {"INFERENCE_NUM_THREADS": "1"}) for name in "AB"]
        case = replace(case, placement=case.placement.model_copy(update={"devices": halves}))
    if pinned:
        of_a = np.where(np.arange(CHAIN.num_ops) == 1, 0, NOT_PINNED)
        case = replace(case, problem=with_pins(case.problem, of_a))
    labels = case.problem.units.partition.labels

    def plan(text: str) -> PlanRecord:
        units = np.zeros(case.problem.num_units, dtype=np.int64)
        units[labels] = ["AB".index(device) for device in text]
        return PlanRecord.of(Plan(units), 2)

    timed = zip(("placement 1", "placement 2", "A", "B"), samples_s, strict=True)
    row: dict[str, Any] = {"median": 1.0, "p95": 1.0, "runs": 1, "ratio": 1.0, "ci95": (None, None), "rounds": 1}
    result = PlaceResult.model_construct(  # of its answer, only what it is compared with
        sentence="",
        objective="latency",
        verdict=Verdict("cpu", 0.1),
        placement=case.placement,
        rows=(Row(name=answer, submodels=1, ops={}, is_answer=True, **row),),
        finalists={"placement 1": plan("AAABBB"), "placement 2": plan("AABBBB")},
        samples={name: [[seconds * (1 + r / 100)] for r in range(6)] for name, seconds in timed},
        turned_down={turned_down: "its outputs differ"} if turned_down else {},
    )
    return replace(case, result=result).explained()


def test_the_next_best_plan_is_the_fastest_other_one_of_the_comparison() -> None:
    found = measured_case("AAABBB", "placement 1", (5.0, 6.0, 8.0, 9.0))
    assert found.best_split is None
    assert found.next_best is not None
    assert (found.next_best.name, found.next_best.measured) == ("placement 2", True)
    assert found.next_best.ratio == pytest.approx(1.2)
    assert found.next_best.ci95 is not None
    assert [(each.op, each.here, each.there) for each in found.next_best.differs] == [("op2", "A", "B")]


@pytest.mark.parametrize(
    ("devices", "samples_s", "more", "next_best", "split"),
    [
        ("AAABBB", (5.0, 6.0, 8.0, 4.0), {"pinned": True}, "placement 2", None),
        ("AAABBB", (5.0, 6.0, 8.0, 4.0), {"pinned": True, "turned_down": "placement 2"}, "A", None),
        ("AAAAAA", (8.8, 9.6, 8.0, 8.4), {}, "B", ("placement 1", 3, pytest.approx(1.1))),
        ("AAAAAA", (8.8, 9.6, 8.0, 8.4), {"alike": True}, "placement 1", ("placement 1", 3, pytest.approx(1.1))),
    ],
)
def test_what_could_be_no_answer_is_not_the_next_best_plan_and_beside_one_device_the_nearest_split_is_named(
    devices: str, samples_s: tuple[float, ...], more: dict[str, Any], next_best: str, split: tuple[object, ...] | None
) -> None:
    found = measured_case(devices, "placement 1" if split is None else "A", samples_s, **more)
    assert found.next_best is not None
    assert found.next_best.name == next_best
    near = found.best_split
    assert (near and (near.name, near.num_ops, near.ratio)) == split


def test_without_a_comparison_the_next_best_plan_is_the_best_move_by_the_costs_and_is_called_simulated() -> None:
    found = case_of(CHAIN, "AAABBB", CHAIN_S).explained()
    assert found.next_best is not None
    assert not found.next_best.measured
    assert found.next_best.value == min(gain.moved for gain in found.gains)
    assert found.next_best.ratio == pytest.approx(found.next_best.value / (found.value.simulated or 0.0))
    alone = case_of(CHAIN, "AAAAAA", CHAIN_S).explained()
    assert alone.best_split == alone.next_best is not None


def test_without_a_profile_or_the_time_for_moves_the_explanation_says_what_is_missing() -> None:
    found = case_of(CHAIN, "AAABBB", CHAIN_S).explained(limit_s=-1.0)
    assert (found.gains, found.num_unmoved > 0) == ((), True)
    assert any("time was over" in note for note in found.notes)
    found = replace(case_of(CHAIN, "AAABBB", CHAIN_S), costs=None).explained()
    assert found.value.simulated is None
    assert not found.gains
    assert any("Nothing was profiled" in note for note in found.notes)


def test_a_whole_device_beside_parts_of_it_is_a_rival_of_a_split_and_no_place_for_its_ops() -> None:
    parts = [DeviceSpec(name=f"CPU_{i}", plugin="CPU", properties={"INFERENCE_NUM_THREADS": "1"}) for i in range(2)]
    devices = [DeviceSpec(name="CPU", plugin="CPU"), *parts]
    split = case_of(CHAIN, "AAABBB", CHAIN_S).placement
    given = {"devices": devices, "affinity": dict.fromkeys(split.affinity, "CPU_0")}
    found = _devices_of(split.model_copy(update=given))
    assert (found.placed, found.rivals) == (tuple(parts), (devices[0],))
