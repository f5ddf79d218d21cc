"""Limits of a solved problem: pins and memory are kept by every method, and single devices that break them are told."""

from __future__ import annotations

import pytest

from hsdag import solve
from hsdag.ir.errors import OptionError, PlacementError
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

# on d0 all three ops take 1 s each, on d1 2 s each; links are free
CHAIN = ScheduleProblem.from_arrays([[1.0, 2.0]] * 3, [(0, 1), (1, 2)], weight_bytes=10.0, output_bytes=0.0)


@pytest.mark.parametrize("method", ["auto", "heft", "sa", "cpsat", "random"])
def test_every_method_keeps_pins(method: str) -> None:
    found = solve(CHAIN, method, pins=["op1=d1"], max_evaluations=50, budget="5s")
    assert found.affinity is not None
    assert found.affinity["op1"] == "d1"
    assert found.value_s is not None
    assert found.lower_bound_s <= found.value_s
    assert found.value_s >= 4.0  # 1 + 2 + 1


def test_single_devices_that_break_a_pin_are_simulated_and_named() -> None:
    found = solve(CHAIN, "met", pins=["op1=d1"])
    assert found.single_s == {"d0": 3.0, "d1": 6.0}
    assert found.breaking == ("d0",)
    assert found.document()["breaking_pins"] == ["d0"]


def test_memory_takes_the_place_of_the_problems_own() -> None:
    found = solve(CHAIN, "cpsat", memory="d0=20", budget="60s")
    assert found.affinity is not None
    assert found.run is not None
    assert found.run.peak_memory_bytes[0] <= 20
    assert sorted(found.affinity.values()) == ["d0", "d0", "d1"]
    assert solve(CHAIN, "cpsat", memory="d0=9,d1=9", budget="60s").status.value == "infeasible"


def test_limits_that_do_not_fit_the_problem_are_refused() -> None:
    with pytest.raises(OptionError, match="--memory names device 'gpu'; the devices are d0, d1"):
        solve(CHAIN, "met", memory="gpu=1GB")
    with pytest.raises(OptionError, match="no op's name matches 'op9'"):
        solve(CHAIN, "met", pins=["op9=d0"])
    with pytest.raises(PlacementError, match="has op 'op1' on d0, which --pin forbids"):
        solve(CHAIN, "met", pins=["op1=d1"], start=dict.fromkeys(CHAIN.op_names, "d0"))
