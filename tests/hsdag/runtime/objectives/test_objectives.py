"""Objectives: how they are found, what they count, how values are shown, and weighted sums of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsdag.base.errors import OptionError
from hsdag.runtime import objectives
from hsdag.runtime.objectives import LATENCY, Objective, Quantity, find_objective, objective_names

HEAT = """
from hsdag.runtime.objectives import Latency

class Heat(Latency):
    name, unit, value_name = "heat", "J", "heat_j"

OBJECTIVE = Heat()
"""


def test_objectives_are_found_by_name_and_a_file_in_the_folder_is_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [find_objective(name).name for name in objective_names()] == ["energy", "latency", "memory", "throughput"]
    assert find_objective("latency") is LATENCY
    with pytest.raises(OptionError, match="unknown objective 'heat'; choose one of energy, latency, memory"):
        find_objective("heat")
    (tmp_path / "heat.py").write_text(HEAT)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    assert objective_names() == ("energy", "heat", "latency", "memory", "throughput")
    assert find_objective("heat").value_name == "heat_j"


@pytest.mark.parametrize(
    ("name", "is_steady", "counts_memory", "depends_on_order", "shown"),
    [
        ("latency", False, False, True, "makespan 250 ms"),
        ("throughput", True, False, False, "throughput 4 inferences/s"),
        ("energy", False, False, False, "energy 250 mJ"),
        ("memory", False, True, True, "peak 2.5e-07 MB"),
        ("latency=1,energy=1", False, False, True, "weighted sum 0.25"),
        ("throughput=1,energy=1", False, False, False, "weighted sum 0.25"),
    ],
)
def test_what_a_value_counts_and_how_it_is_shown(
    name: str, is_steady: bool, counts_memory: bool, depends_on_order: bool, shown: str
) -> None:
    found = find_objective(name)
    assert (found.is_steady, found.counts_memory, found.depends_on_order) == (
        is_steady,
        counts_memory,
        depends_on_order,
    )
    assert f"{found.label} {found.text(0.25)}" == shown


def test_a_term_of_a_weighted_sum_is_1_where_it_is_as_good_as_the_best_single_device() -> None:
    def best_single(objective: Objective) -> float:
        return {"latency": 4.0, "memory": 152.0, "energy": 0.0}[objective.name]

    objective = find_objective("latency=3, memory=1,energy=4").scaled(best_single)
    assert objective.name == "latency=3,memory=1,energy=4"
    assert objective.quantities == (Quantity.LATENCY, Quantity.PEAK, Quantity.ENERGY)
    found = objective.value(np.array([4.0, 6.0]), np.array([152.0, 38.0]), np.array([1.0, 2.0]))
    assert found.tolist() == [1.0, (3 * 6 / 4 + 38 / 152 + 4 * 2) / 8]


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
