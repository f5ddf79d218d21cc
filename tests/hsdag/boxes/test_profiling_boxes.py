"""Profiling on several machines: each is compared with itself alone, and this one does what no other has done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from hsdag.boxes.boxes import Boxes, find_boxes
from hsdag.boxes.profiling import ProfilingBoxes
from hsdag.boxes.site import Packed, Site
from hsdag.evaluators.bench import Bench
from hsdag.evaluators.measurement import SearchMeasurement
from hsdag.fleet.pool import Pool
from hsdag.ir import DeviceError, DeviceSpec, graph_from_edges
from hsdag.ir.graph import IntArray
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.candidate import Limits
from hsdag.runtime.measuring.messages import OpTimes, Probe, SideBySide, WorkerSetup
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.profiler import Profiler
from hsdag.runtime.problems.objectives.latency import LATENCY
from tests.hsdag.boxes.machines import DEVICES, Box, Clock, Timed, TimedClient, empty_model

GRAPH = graph_from_edges(["Add"] * 6, [(v - 1, v) for v in range(1, 6)], output_bytes=[1000] * 6)
WITH_C = (*DEVICES, DeviceSpec.parse("C=CPU"))


class Fleet:
    """A machine that profiles, and boxes; for 60 s each device by its clock, of which a look takes ``tick_s``."""

    def __init__(self, folder: Path, boxes: Sequence[Box], tick_s: float = 0.0, runner: Timed | None = None) -> None:
        self.pool, self.said, self.steps = Pool(boxes), list[str](), list[str]()
        packed = Packed.of(WorkerSetup(empty_model(folder), DEVICES))
        site = Site(packed, LATENCY, Limits(), SearchMeasurement())
        self.boxes: Boxes = find_boxes(self.pool, site, self.said.append)
        self.clock = Clock(tick_s)
        self.client = TimedClient(clock=self.clock)
        self.runner, self.cache, self.should_stop = runner or Timed(), ProfileCache(folder / "cache"), False

    def profile(
        self,
        devices: Sequence[DeviceSpec] = DEVICES,
        carriers: IntArray | None = None,
        *,
        side_by_side: bool = False,
        is_alone: bool = False,
    ) -> ModelProfile:
        profiler = Profiler(
            self.client,  # type: ignore[arg-type]
            GRAPH,
            "digest",
            self.cache,
            on_step=self.steps.append,
            should_stop=lambda: self.should_stop,
            clock=self.clock,
            elsewhere=None if is_alone else ProfilingBoxes(self.boxes, Bench(self.runner, SearchMeasurement())),
        )
        own = np.tile(np.arange(len(devices)), (6, 1))
        return profiler.profile(devices, own if carriers is None else carriers, side_by_side=side_by_side)

    @property
    def profiled_here(self) -> list[str]:
        return [request.of for request in self.client.asked if isinstance(request, OpTimes)]


Make = Callable[..., Fleet]


@pytest.fixture
def fleet_of(tmp_path: Path) -> Iterator[Make]:
    """Makes a fleet, which ends with the test."""
    made: list[Fleet] = []

    def make(*boxes: Box, tick_s: float = 0.0, runner: Timed | None = None) -> Fleet:
        made.append(Fleet(tmp_path, boxes, tick_s, runner))
        return made[-1]

    yield make
    for fleet in made:
        fleet.pool.close()


@pytest.mark.parametrize("slowness", [0.5, 1.0, 2.0])
def test_a_faster_or_slower_machine_gives_the_same_profile(fleet_of: Make, slowness: float) -> None:
    fleet = fleet_of(Box("anna", Timed(slowness)))
    first, second = fleet.profile().times
    assert (first.box, second.box) == (None, "anna")
    assert fleet.profiled_here == ["CPU_A"]
    assert second.time_s.tolist() == pytest.approx([1.5e-3] * 6, rel=1e-12)
    assert second.latency_s == pytest.approx(9e-3, rel=1e-12)
    assert (second.compile_s, second.first_s) == pytest.approx((0.5, 0.02), rel=1e-12)
    assert (second.spread, second.runs, second.resident_bytes, second.memory_bytes) == (0.25, 20, 4096, 1e9)


def test_the_reference_before_and_after_a_device_counts_where_a_machine_changes_its_speed(fleet_of: Make) -> None:
    box = Box("anna", Timed(1.0), client=TimedClient(2.0))
    box.client.on_call = lambda: setattr(box.runner, "slowness", 3.0)
    assert fleet_of(box).profile().times[1].latency_s == pytest.approx(9e-3, rel=1e-12)


def test_every_free_machine_takes_a_device(fleet_of: Make) -> None:
    fleet = fleet_of(Box("anna", Timed(3.0)), Box("berta"))
    profile = fleet.profile(WITH_C)
    assert {times.box for times in profile.times} == {None, "anna", "berta"}
    assert [times.latency_s for times in profile.times] == pytest.approx([6e-3, 9e-3, 12e-3], rel=1e-12)
    assert fleet.profiled_here == ["CPU_A"]


def test_the_reference_runs_around_a_device_there_and_once_here_where_nothing_of_it_stays_open(fleet_of: Make) -> None:
    box = Box("anna")
    fleet = fleet_of(box)
    fleet.profile()
    assert [candidate.target for candidate in box.runner.opened] == ["CPU_A"]
    assert [candidate.target for candidate in fleet.runner.opened] == ["CPU_A"]
    assert fleet.runner._kept == {}


def test_links_and_devices_side_by_side_are_measured_here(fleet_of: Make) -> None:
    box = Box("anna")
    fleet = fleet_of(box)
    fleet.profile(side_by_side=True)
    assert {type(request) for request in fleet.client.asked} == {OpTimes, Probe, SideBySide}
    assert {type(request) for request in box.client.asked} == {OpTimes}


def test_a_device_whose_machine_is_lost_is_profiled_here(fleet_of: Make) -> None:
    fleet = fleet_of(Box("anna", Timed(2.0), num_losses=1))
    second = fleet.profile().times[1]
    assert second.latency_s == pytest.approx(9e-3)
    assert second.box is None
    assert fleet.said == ["anna is lost (a test); what it had to measure is measured on another machine"]


def test_an_unlike_machine_profiles_nothing(fleet_of: Make) -> None:
    box = Box("anna", differs=True)
    fleet = fleet_of(box)
    assert [times.box for times in fleet.profile().times] == [None, None]
    assert box.client.asked == []


def test_a_machine_on_which_the_reference_does_not_run_profiles_nothing(fleet_of: Make) -> None:
    fleet = fleet_of(Box("anna", Timed(failing=["CPU_A"])))
    assert [times.box for times in fleet.profile().times] == [None, None]
    assert fleet.boxes.hosts == []


def test_all_is_profiled_here_where_the_reference_does_not_run_here(fleet_of: Make) -> None:
    box = Box("anna", hangs=True)
    fleet = fleet_of(box, runner=Timed(failing=["CPU_A"]))
    assert [times.box for times in fleet.profile(WITH_C).times] == [None, None, None]
    assert fleet.runner.num_asked == 1
    fleet.pool.rest()
    assert not box.was_waited_for


def test_a_device_that_fails_elsewhere_is_profiled_here_and_the_machine_goes_on(fleet_of: Make) -> None:
    fleet = fleet_of(Box("anna", client=TimedClient(failing=["CPU_B"])))
    assert fleet.profile().times[1].latency_s == pytest.approx(9e-3)
    assert fleet.profiled_here == ["CPU_A", "CPU_B"]
    assert len(fleet.boxes.hosts) == 1


def test_a_machine_that_hangs_is_waited_for_as_long_as_a_device_takes_here(fleet_of: Make) -> None:
    box = Box("anna", hangs=True)
    fleet = fleet_of(box, tick_s=20.0)
    second = fleet.profile().times[1]
    fleet.pool.rest()
    assert not box.was_waited_for
    assert second.latency_s == pytest.approx(9e-3)
    assert second.box is None


def test_an_interrupt_gives_up_what_is_profiled_elsewhere(fleet_of: Make) -> None:
    box = Box("anna", hangs=True)
    fleet = fleet_of(box)
    fleet.client.on_call = lambda: setattr(fleet, "should_stop", True)
    with pytest.raises(DeviceError, match="profiling was interrupted"):
        fleet.profile()
    fleet.pool.rest()
    assert not box.was_waited_for


def test_models_that_no_device_runs_whole_are_profiled_here(fleet_of: Make) -> None:
    box = Box("anna")
    fleet = fleet_of(box)
    carriers = np.tile([0, 1], (6, 1))
    carriers[0, 0], carriers[5, 1] = 1, 0
    assert [times.box for times in fleet.profile(carriers=carriers).times] == [None, None]
    assert box.client.asked == []


def test_what_another_machine_has_measured_is_kept_here_with_its_name(fleet_of: Make) -> None:
    fleet = fleet_of(Box("anna", Timed(2.0)))
    found, again = fleet.profile().times[1], fleet.profile(is_alone=True).times[1]
    assert again.box == "anna"
    assert again.time_s.tolist() == found.time_s.tolist()
    assert fleet.profiled_here == ["CPU_A"]
