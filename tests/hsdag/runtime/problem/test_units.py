"""Units of a problem, pins of its ops, and packing of weights."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.base.errors import OptionError
from hsdag.runtime.problem.packing import Packing, pack_weights
from hsdag.runtime.problem.pins import Pin, parse_pins, pinned_devices, with_pinned_ops, with_pins
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import graph_of_problem, problem_of
from hsdag.runtime.simulator.simulation import simulate, simulate_makespans
from tests.hsdag.methods.exact.exact_reference import random_problem


def random_units(seed: int) -> ScheduleProblem:
    rng, n = np.random.default_rng(seed), 7
    sets = tuple(str(rng.choice(["", "", "x", "y"])) for _ in range(n))
    labels = replace(OpLabels.empty(n), colocate=sets)
    tables: dict[str, Any] = {"weight_bytes": rng.random(n), "link_latency_s": 0.1, "launch_s": 0.2, "labels": labels}
    return random_problem(seed, n, real=True, shuffled=True, lacks=0.0, **tables)


@given(st.integers(0, 2**32))
def test_the_costs_of_a_unit_are_what_its_ops_take_in_a_row(seed: int) -> None:
    problem = random_units(seed)
    units = problem_of(problem)
    assert units.costs is not None
    for d in range(2):
        alone = np.full((1, units.num_units), d)
        whole = simulate_makespans(problem, np.full((1, 7), d))
        np.testing.assert_allclose(simulate_makespans(units.costs, alone), whole, rtol=1e-12)
    np.testing.assert_allclose(units.costs.weight_bytes.sum(), problem.weight_bytes.sum())


def test_a_unit_runs_where_all_its_ops_do() -> None:
    labels = replace(OpLabels.empty(3), colocate=("s", "", "s"))
    problem = ScheduleProblem.from_arrays([[1.0, 2.0], [3.0, 4.0], [np.nan, 5.0]], [(0, 1), (1, 2)], labels=labels)
    units = problem_of(problem)
    assert units.num_units == 2
    together = units.units.partition.labels[0]
    assert units.supported[together].tolist() == [False, True]
    assert units.costs is not None
    assert units.costs.time_s[together, 1] == 2 + 5


def test_a_unit_sends_the_results_of_its_ops_one_by_one() -> None:
    """Each of the two takes 2 s to another unit whose ops read one each."""
    labels = replace(OpLabels.empty(3), colocate=("", "both", "both"))
    links: dict[str, Any] = {"edge_bytes": 4.0, "link_bandwidth_bytes_per_s": 4.0, "link_latency_s": 1.0}
    problem = ScheduleProblem.from_arrays(np.zeros((3, 2)), [(0, 1), (0, 2)], edge_port=[0, 1], labels=labels, **links)
    units = problem_of(problem).costs
    assert units is not None
    assert simulate_makespans(units, [[0, 1]], Semantics(Execution.SEQUENTIAL)).tolist() == [4.0]


@pytest.mark.parametrize("size", [1.5, 1e23])
def test_sizes_that_are_no_whole_numbers_are_taken(size: float) -> None:
    problem = ScheduleProblem.from_arrays([[1.0], [1.0]], [(0, 1)], output_bytes=size, weight_bytes=size)
    assert graph_of_problem(problem).output_bytes.min() > 0


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
        (["a/(=A"], r"pins a/\(=A: 'a/\(' is not a regular expression: missing \)"),
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
    pinned = with_pins(problem_of(line(3)), np.array([-1, 1, -1]))
    for each in (pinned.costs, pinned.ops):
        assert isinstance(each, ScheduleProblem)
        assert np.isnan(each.time_s).tolist() == [[False, False], [True, False], [False, False]]
    assert pinned.supported.tolist() == [[True, True], [False, True], [True, True]]


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


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(5, 20), st.integers(5, 20))
@settings(max_examples=20)
def test_weights_are_packed_exactly_where_they_can_be(weights: list[int], first: int, second: int) -> None:
    n = len(weights)
    problem = ScheduleProblem.from_arrays(np.ones((n, 2)), [], weight_bytes=weights, memory_bytes=[first, second])
    loads = [np.bincount(p, weights, 2) for p in itertools.product(range(2), repeat=n)]
    fits = any(load[0] <= first and load[1] <= second for load in loads)
    packing = pack_weights(problem, problem_of(problem))
    assert packing.status is (Packing.FOUND if fits else Packing.IMPOSSIBLE)
    if packing.placement is not None:
        units = problem_of(problem)
        assert np.all(np.bincount(units.expand(packing.placement), weights, 2) <= [first, second])


def test_without_time_weights_are_packed_only_where_that_is_at_once_clear() -> None:
    tight = ScheduleProblem.from_arrays([[1.0, 2.0]] * 3, [], weight_bytes=[6, 5, 4], memory_bytes=10)
    assert pack_weights(tight, problem_of(tight), 0.0).status is Packing.UNKNOWN
    for memory_bytes in (tight.memory_bytes, np.array([10.0, np.inf])):
        roomy = replace(tight, memory_bytes=memory_bytes)
        packed = pack_weights(roomy, problem_of(roomy))
        assert packed.placement is not None
        assert np.bincount(packed.placement).tolist() == [2, 1]
    wide = replace(tight, memory_bytes=np.array([15.0, 15.0]))
    assert pack_weights(wide, problem_of(wide), 0.0).status is Packing.FOUND


def test_a_result_that_is_held_for_no_time_needs_no_room() -> None:
    problem = ScheduleProblem.from_arrays(
        [[3.0, 0.0], [3.0, 6.0]], [(0, 1)], output_bytes=[3, 4], edge_bytes=[0], weight_bytes=[4, 0], memory_bytes=6.6
    )
    assert (simulate(problem, [1, 0]).peak_memory_bytes <= problem.memory_bytes).all()
    assert pack_weights(problem, problem_of(problem)).status is Packing.FOUND
