"""What limits of the answer leave: units on devices of low precision."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hsdag.base.errors import OptionError
from hsdag.commands.place.limits import MARGIN, check_start, disallowed_devices, disallowed_start, within_difference
from hsdag.commands.place.session import Session
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.placement.placement import ModelRecord, Placement
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.problem.pins import NOT_PINNED, Pin
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.options import PlaceOptions

UNITS = 16


def problem(num_units: int = UNITS) -> Problem:
    edges = [(v, v + 1) for v in range(num_units - 1)]
    return problem_of(ScheduleProblem.from_arrays(np.ones((num_units, 2)), edges))


class Differs:
    """Outputs differ by the sum of what units on the second device add."""

    def __init__(self, added: np.ndarray) -> None:
        self.added, self.num_runs = added, 0

    def __call__(self, plan: Plan) -> float:
        self.num_runs += 1
        return float(self.added[plan.placement == 1].sum())


def test_all_units_that_may_leave_keep_the_limit_together() -> None:
    differs = Differs(np.full(UNITS, 0.2))
    allowed, (sentence,) = within_difference(problem(), 2.0, differs)
    admitted = allowed.supported[:, 1]
    assert differs.num_runs == 20  # devices alone, a half that is right, and one down to its units
    assert differs(Plan(admitted.astype(np.int64))) <= MARGIN * 2.0
    assert admitted.sum() == 8
    assert allowed.supported[:, 0].all()
    assert sentence == "with the whole model on d1 outputs differ by 3.2, and 2 is allowed; 8 of 16 units may run there"


@pytest.mark.parametrize(("num_units", "kept"), [(UNITS, [5]), (2 * UNITS, [5, 6])])
def test_one_bad_unit_alone_or_in_a_small_share_is_kept_from_leaving_so_that_every_method_obeys(
    num_units: int, kept: list[int]
) -> None:
    added = np.zeros(num_units)
    added[5] = 2.0
    allowed, _ = within_difference(problem(num_units), 1.0, Differs(added))
    assert np.flatnonzero(~allowed.supported[:, 1]).tolist() == kept
    assert allowed.costs is not None
    assert isinstance(allowed.ops, ScheduleProblem)
    assert (np.isnan(allowed.costs.time_s) == ~allowed.supported).all()
    assert (np.isnan(allowed.ops.time_s) == ~allowed.supported).all()


@pytest.mark.parametrize("added", [0.0, np.inf])
def test_where_all_devices_keep_the_limit_or_none_nothing_is_left_out(added: float) -> None:
    whole = problem()
    differs = Differs(np.full(UNITS, added))
    everywhere = differs if added == 0.0 else (lambda _: np.inf)
    assert within_difference(whole, 1.0, everywhere) == (whole, ())


def test_what_only_a_device_of_low_precision_runs_stays_there() -> None:
    edges = [(v, v + 1) for v in range(UNITS - 1)]
    time_s = np.ones((UNITS, 2))
    time_s[3, 0] = np.nan
    allowed, _ = within_difference(
        problem_of(ScheduleProblem.from_arrays(time_s, edges)), 0.05, Differs(np.full(UNITS, 0.1))
    )
    assert allowed.supported[3].tolist() == [False, True]


def test_when_time_is_up_what_was_not_tried_stays() -> None:
    differs = Differs(np.full(UNITS, 0.1))
    allowed, _ = within_difference(problem(), 1.0, differs, lambda: True)
    assert not allowed.supported[:, 1].any()
    assert differs.num_runs == 2


CHAIN = graph_from_edges(["MatMul"] * 3, [(0, 1), (1, 2)])


def session_of(limits: dict[str, float], supported: float = 1.0) -> Session:
    """Three ops of 10 bytes and results of 1 byte on devices A and B, which are parts of a third one."""
    times, names = [[1.0, 1.0], [1.0, 1.0], [supported, 1.0]], ("A", "B", "CPU")
    costs = ScheduleProblem.from_arrays(
        times, [(0, 1), (1, 2)], weight_bytes=10.0, output_bytes=1.0, device_names=names[:2], link_latency_s=1.0
    )
    specs = [DeviceSpec(name, "CPU") for name in names]
    return cast(
        Session,
        SimpleNamespace(
            devices=DeviceSet(tuple(specs[:2]), tuple(specs[2:])),
            memory_limits=lambda _: limits,
            problem=lambda **_: problem_of(costs),
            graph=graph_from_edges(["MatMul"] * 3, [(0, 1), (1, 2)]),
            model=SimpleNamespace(
                pinned=np.array([NOT_PINNED, 1, NOT_PINNED]), of_units=lambda _, devices: np.array(devices)
            ),
            widens=np.zeros(2, dtype=np.bool_),
        ),
    )


def start_on(devices: Sequence[str]) -> Placement:
    return Placement(
        model=ModelRecord.of(CHAIN),
        devices=[DeviceSpec(name, "CPU") for name in ("A", "B", "CPU")],
        affinity=dict(zip(CHAIN.canonical_names, devices, strict=True)),
        method="by hand",
        seed=0,
        objective="latency",
        executor="work-conserving",
    )


def test_a_start_that_breaks_a_pin_is_refused() -> None:
    check_start(session_of({}), start_on("ABA"))
    with pytest.raises(OptionError, match="has op 'op1' on A, and pins puts it on B; leave one of them out"):
        check_start(session_of({}), start_on("AAA"))


@pytest.mark.parametrize(
    ("limits", "devices", "why"),
    [
        ({}, "AAB", None),
        ({"A": 22.0, "B": 12.0}, "AAB", None),
        ({"A": 21.0, "B": 12.0}, "AAB", "it takes 22 B on A, which has 21 B"),
        ({"A": 22.0, "B": 11.0}, "AAB", "it takes 12 B on B, which has 11 B"),
        ({"A": 1.0}, ["A", "A", "CPU"], None),
    ],
)
def test_a_start_over_memory_is_ruled_out(limits: dict[str, float], devices: Sequence[str], why: str | None) -> None:
    assert disallowed_start(session_of(limits), start_on(devices), cast(ModelProfile, "any")) == why


def test_devices_whose_memory_an_inference_exceeds_or_that_break_a_pin_are_ruled_out() -> None:
    session, options, profile = session_of({"A": 31.0, "CPU": 32.0}, np.nan), PlaceOptions(), cast(ModelProfile, "any")
    peaks = "an inference peaks at 32 B, and it has 31 B"
    assert disallowed_devices(session, options, profile) == {"A": peaks}
    assert disallowed_devices(session, options, None) == disallowed_devices(session_of({}), options, profile) == {}
    assert not disallowed_devices(session, PlaceOptions(memory_bytes={"A": 1.0, "CPU": 9.0}), None)
    of_a_part = PlaceOptions(memory_bytes={"A": 1.0})
    assert disallowed_devices(session, of_a_part, None) == {"CPU": "memory is about its parts"}
    pinned = PlaceOptions(pins=(Pin("a", "B"),))
    assert disallowed_devices(session, pinned, profile) == dict.fromkeys(("A", "CPU"), f"it breaks {pinned.pins[0]}")
