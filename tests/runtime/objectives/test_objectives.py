"""Objectives: found by name, each with its own value, bound and measurement; a new one is one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsdag.ir.errors import OptionError
from hsdag.runtime import objectives
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, find_objective, objective_names
from hsdag.runtime.problem.bounds.makespan import lower_bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Semantics
from hsdag.runtime.simulator.values import simulated_values

HEAT = """
from hsdag.runtime.objectives.objective import Latency

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


def test_latency_is_the_makespan_and_throughput_the_load_of_the_busiest_device() -> None:
    problem = ScheduleProblem.from_arrays([[3.0, 3.0], [2.0, 2.0]], [(0, 1)])
    split = np.array([[0, 1]])
    assert simulated_values(LATENCY, problem, split, Semantics()).tolist() == [5.0]
    assert simulated_values(THROUGHPUT, problem, split, Semantics()).tolist() == [3.0]
    assert [lower_bound(o, problem, Execution.WORK_CONSERVING).value_s for o in (LATENCY, THROUGHPUT)] == [5.0, 3.0]


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
