"""Objectives: names, weighted sums, and what their values are made of."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsdag import simulate, solve
from hsdag.ir.errors import OptionError
from hsdag.runtime import objectives
from hsdag.runtime.objectives import ENERGY, LATENCY, MEMORY, THROUGHPUT, Objective, find_objective, objective_names
from hsdag.runtime.problem.bounds.makespan import lower_bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Semantics
from hsdag.runtime.simulator.values import simulated_values
from hsdag.search.solve import settled

HEAT = """
from hsdag.runtime.objectives import Latency

class Heat(Latency):
    name, unit, meaning, value_name = "heat", "J", "less heat", "heat_j"

OBJECTIVE = Heat()
"""


def planned(placement: list[int], order: list[int] | None = None) -> Plan:
    return Plan(np.array(placement), None if order is None else np.array(order))


def test_objectives_are_found_by_name_and_an_unknown_one_is_answered_with_the_choices() -> None:
    assert [find_objective(name).name for name in objective_names()] == ["energy", "latency", "memory", "throughput"]
    assert find_objective("latency") is LATENCY
    with pytest.raises(OptionError, match="unknown objective 'heat'; choose one of energy, latency, memory"):
        find_objective("heat")


def test_a_file_in_the_folder_is_a_new_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heat.py").write_text(HEAT)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    assert objective_names() == ("energy", "heat", "latency", "memory", "throughput")
    assert find_objective("heat").value_name == "heat_j"


def test_the_order_matters_to_latency_and_to_peaks_of_memory() -> None:
    names = [name for name in objective_names() if find_objective(name).depends_on_order]
    assert names == ["latency", "memory"]
    assert [find_objective(f"{name}=1,energy=1").depends_on_order for name in ("latency", "throughput")] == [
        True,
        False,
    ]


def test_latency_is_not_defined_under_blocking_links() -> None:
    Semantics(links=Links.BLOCKING).check(THROUGHPUT)
    with pytest.raises(OptionError, match="--objective throughput only"):
        Semantics(links=Links.BLOCKING).check(LATENCY)


def test_plans_are_equal_where_placement_and_order_are_and_cannot_be_changed() -> None:
    placement = np.array([0, 1, 0])
    plan = Plan(placement, np.array([2, 0, 1]))
    placement[0] = 1
    assert plan == planned([0, 1, 0], [2, 0, 1])
    assert len({plan, plan.unordered, planned([0, 1, 0]), planned([0, 0, 0])}) == 3
    assert [plan.is_split, planned([1, 1]).is_split] == [True, False]
    with pytest.raises(ValueError, match="read-only"):
        plan.placement[0] = 1


@pytest.mark.parametrize(("placement", "order"), [([[0]], None), ([0, 1], [0])])
def test_a_plan_of_other_shapes_is_refused(placement: list[int], order: list[int] | None) -> None:
    with pytest.raises(ValueError, match="one device per unit"):
        planned(placement, order)


# two ops in a line, 3 s and 1 s on d0, which takes 10 W, and twice as long on d1, which takes 2 W
LINE = ScheduleProblem.from_arrays(
    [[3.0, 6.0], [1.0, 2.0]],
    [(0, 1)],
    weight_bytes=[100.0, 40.0],
    output_bytes=[8.0, 4.0],
    power_w=[10.0, 2.0],
)
EVERY = np.array(list(itertools.product(range(2), repeat=2)))


def values(objective: Objective) -> list[float]:
    return [float(value) for value in simulated_values(objective, LINE, EVERY, Semantics())]


def test_memory_is_the_peak_of_the_fullest_device() -> None:
    # weights 140 and both results at once; split, the second op's device has its weights, the input's copy and a result
    assert values(MEMORY) == [152.0, 108.0, 108.0, 152.0]


def test_energy_is_the_time_that_devices_compute_times_their_power() -> None:
    assert values(ENERGY) == [40.0, 34.0, 22.0, 16.0]


def test_energy_of_devices_that_slow_each_other_down_is_of_the_time_they_take_then() -> None:
    apart = replace(LINE, edge_src=LINE.edge_src[:0], edge_dst=LINE.edge_dst[:0], edge_bytes=LINE.edge_bytes[:0],
                    edge_port=LINE.edge_port[:0], slowdown=np.array([[1.0, 2.0], [2.0, 1.0]]))  # fmt: skip
    assert simulated_values(ENERGY, apart, EVERY[1:2], Semantics())[0] > 34.0


@pytest.mark.parametrize("name", ["memory", "energy", "latency=1,memory=1", "energy=3,latency=1,throughput=2"])
@pytest.mark.parametrize("execution", list(Execution))
def test_no_placement_is_below_the_bound(name: str, execution: Execution) -> None:
    semantics = Semantics(execution=execution)
    objective = settled(find_objective(name), LINE, semantics)
    least = simulated_values(objective, LINE, EVERY, semantics).min()
    assert 0 < lower_bound(objective, LINE, execution).value_s <= least * (1 + 1e-12)


def test_a_term_of_a_weighted_sum_is_1_where_it_is_as_good_as_the_best_single_device() -> None:
    objective = settled(find_objective("latency=3, memory=1"), LINE, Semantics())
    assert objective.name == "latency=3,memory=1"
    assert simulated_values(objective, LINE, EVERY, Semantics()).tolist() == pytest.approx(
        [1.0, 0.75 * 5 / 4 + 0.25 * 108 / 152, 0.75 * 7 / 4 + 0.25 * 108 / 152, 0.75 * 8 / 4 + 0.25]
    )


@pytest.mark.slow
def test_answers_have_the_unit_of_the_objective() -> None:
    found = solve(LINE, "auto", objective="memory", budget="5s", max_evaluations=60)
    document = found.document()
    assert document["value"] == 108.0
    assert document["single_devices"] == {"d0": 152.0, "d1": 152.0}
    assert document["lower_bound"] == 100.0
    assert document["unit"] == "B"
    placement = found.placement()
    assert placement.latency is not None
    assert placement.latency.median_s == simulate(LINE, placement).value_s  # seconds, whatever was searched for
    assert placement.baselines == {}
    assert MEMORY.text(1.5e6) == "1.5 MB"
    assert ENERGY.text(0.25) == "250 mJ"
    assert LATENCY.text(0.25) == "250 ms"


def test_power_is_read_and_written_and_one_that_is_missing_is_named() -> None:
    assert problem_from_json(problem_to_json(LINE)).power_w is not None
    some = problem_from_json(problem_to_json(replace(LINE, power_w=np.array([10.0, np.nan]))))
    with pytest.raises(OptionError, match="device 'd1' of problem 'problem' has none: give it a power_w"):
        solve(some, "sa", objective="energy")
    with pytest.raises(OptionError, match="device 'd0' of problem"):
        simulate(replace(LINE, power_w=None), {"op0": "d0", "op1": "d0"}, objective="latency=1,energy=1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency=0", "'latency=0' is not of the form OBJECTIVE=WEIGHT"),
        ("latency=1,memory", "'memory' is not of the form"),
        ("speed=1", "unknown objective 'speed'; choose one of"),
        ("latency=1,latency=2", "gives latency two weights"),
        ("weighted", "unknown objective 'weighted'"),
    ],
)
def test_wrong_sums_are_one_line(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        find_objective(text)


def test_methods_for_times_refuse_other_objectives() -> None:
    with pytest.raises(OptionError, match="method 'heft' is for --objective latency or throughput, not memory"):
        solve(LINE, "heft", objective="memory")
    with pytest.raises(OptionError, match="method 'cpsat' is for --objective latency or throughput, not latency=1,e"):
        solve(LINE, "cpsat", objective="latency=1,energy=1")
    with pytest.raises(OptionError, match="--links blocking"):
        Semantics(links=Links.BLOCKING).check(MEMORY)
