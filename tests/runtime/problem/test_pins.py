"""Pins: which ops they name, what they leave of a problem, and one line for each that cannot be kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.problem.pins import Pin, parse_pins, pinned_devices, with_pinned_ops, with_pins
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.units import problem_of

NAMES = ("a/conv", "a/relu", "b/conv")
DEVICES = ("A", "B")


def test_a_pattern_may_hold_an_equals_sign_and_matches_from_end_to_end() -> None:
    assert parse_pins(["x=y.*=GPU.0"]) == (Pin("x=y.*", "GPU.0"),)
    assert pinned_devices(NAMES, parse_pins(["a/.*=B"]), DEVICES).tolist() == [1, 1, -1]


def test_ops_that_float_are_never_pinned() -> None:
    floats = np.array([True, False, False])
    assert pinned_devices(NAMES, parse_pins(["a/.*=B"]), DEVICES, floats).tolist() == [-1, 1, -1]
    with pytest.raises(OptionError, match="names only constants"):
        pinned_devices(NAMES, parse_pins(["a/conv=B"]), DEVICES, floats)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a/conv"], "'a/conv' is not of the form REGEX=DEVICE"),
        (["=A"], "'=A' is not of the form"),
        (["a/(=A"], r"--pin a/\(=A: 'a/\(' is not a regular expression: missing \)"),
        (["conv=A"], r"no op's name matches 'conv' from end to end; it matches parts of 2: write \.\*conv\.\*"),
        (["z=A"], "no op's name matches 'z' from end to end; one op is 'a/conv'"),
        (["a/.*=C"], "names device 'C'; the devices are A, B"),
        (["a/.*=A", ".*/conv=B"], "contradict each other: both name op 'a/conv'"),
    ],
)
def test_what_is_wrong_with_a_pin_is_one_line(texts: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pinned_devices(NAMES, parse_pins(texts), DEVICES)


def line(count: int) -> ScheduleProblem:
    return ScheduleProblem.from_arrays(
        np.ones((count, 2)), [(v, v + 1) for v in range(count - 1)], device_names=DEVICES
    )


def test_a_pinned_op_has_a_time_on_its_device_alone() -> None:
    pinned = with_pinned_ops(line(3), parse_pins(["op1=B"]))
    assert np.isnan(pinned.time_s).tolist() == [[False, False], [True, False], [False, False]]
    assert problem_of(pinned).supported.tolist() == [[True, True], [False, True], [True, True]]


def test_ops_of_a_set_are_pinned_to_one_device_that_runs_them_all() -> None:
    tied = replace(line(3), labels=replace(OpLabels.empty(3), colocate=("s", "s", "")))
    alone = with_pinned_ops(tied, parse_pins(["op0=A"]))
    assert np.isnan(alone.time_s).tolist() == [[False, True], [False, True], [False, False]]
    with pytest.raises(OptionError, match="op 'op0' on A and op 'op1' on B, but these ops are tied together"):
        with_pinned_ops(tied, parse_pins(["op0=A", "op1=B"]))
    lacking = replace(tied, time_s=np.array([[1.0, 1.0], [np.nan, 1.0], [1.0, 1.0]]))
    for name in ("op0", "op1"):
        with pytest.raises(OptionError, match=f"puts op '{name}' on A, which does not run it or an op tied to it"):
            with_pinned_ops(lacking, parse_pins([f"{name}=A"]))


def test_units_are_cut_where_pins_change_and_hold_no_other_ops() -> None:
    graph = graph_from_edges(["Parameter", *["Relu"] * 4, "Result"], [(v, v + 1) for v in range(5)])
    pinned = np.array([-1, -1, 0, 1, -1, -1])
    labels = placement_units(graph, pinned=pinned).partition.labels.tolist()
    assert placement_units(graph).partition.num_groups == 1
    assert len({labels[1], labels[2], labels[3], labels[4]}) == 4


def test_a_unit_of_ops_that_are_tied_keeps_one_pin_only() -> None:
    graph = graph_from_edges(["Parameter", *["Relu"] * 4, "Result"], [(v, v + 1) for v in range(5)])
    problem = Problem(placement_units(graph), DEVICES, np.ones((1, 2), dtype=np.bool_))
    assert with_pins(problem, np.array([-1, 1, 1, -1, -1, -1])).supported.tolist() == [[False, True]]
    with pytest.raises(OptionError, match="these ops are tied together and share a device"):
        with_pins(problem, np.array([-1, 0, 1, -1, -1, -1]))
    only_first = replace(problem, supported=np.array([[True, False]]))
    with pytest.raises(OptionError, match="on B, which does not run it or an op tied to it"):
        with_pins(only_first, np.array([-1, 1, -1, -1, -1, -1]))
