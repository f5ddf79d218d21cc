"""Measuring on several machines: each is compared with itself alone, whatever is lost meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from hsdag.boxes.boxes import Boxes, find_boxes
from hsdag.boxes.evaluator import BoxesEvaluator
from hsdag.boxes.site import Packed, Site
from hsdag.evaluators.base import Score
from hsdag.evaluators.measured import MeasuredEvaluator
from hsdag.evaluators.measurement import SearchMeasurement
from hsdag.evaluators.recording import Event
from hsdag.evaluators.schedule import UNSUPPORTED
from hsdag.fleet.pool import Pool
from hsdag.ir import graph_from_edges
from hsdag.ir.coarsen import coarsen
from hsdag.ir.partition import Partition
from hsdag.runtime.measuring.candidate import Limits
from hsdag.runtime.measuring.messages import WorkerSetup
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from tests.hsdag.boxes.machines import DEVICES, Box, Timed, empty_model, random_placements, true_s

GRAPH = graph_from_edges(["Add"] * 6, [(v - 1, v) for v in range(1, 6)], output_bytes=[1000] * 6)
SUPPORTED = np.ones((6, 2), dtype=np.bool_)
ALONE = [Plan(np.full(6, d)) for d in (0, 1)]
SPLITS = [Plan(placement) for placement in random_placements(12)]


def problem(supported: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = SUPPORTED) -> Problem:
    return Problem(coarsen(GRAPH, Partition.identity(6)), ("A", "B"), supported)


def inner(runner: Timed | None = None, of: Problem | None = None) -> MeasuredEvaluator:
    return MeasuredEvaluator(of or problem(), DEVICES, runner or Timed(), executor="work-conserving")


class Fleet:
    """A pool of boxes, and what measures on it."""

    def __init__(self, folder: Path, boxes: Sequence[Box]) -> None:
        self.pool, self.said = Pool(boxes), list[str]()
        packed = Packed.of(WorkerSetup(empty_model(folder), DEVICES))
        site = Site(packed, LATENCY, Limits(), SearchMeasurement())
        self.boxes: Boxes = find_boxes(self.pool, site, self.said.append)

    def evaluator(self, here: MeasuredEvaluator | None = None, past: Sequence[Event] = ()) -> BoxesEvaluator:
        return BoxesEvaluator(here or inner(), self.boxes, past)


Make = Callable[..., Fleet]


@pytest.fixture
def fleet_of(tmp_path: Path) -> Iterator[Make]:
    """Makes a fleet of boxes, which ends with the test."""
    made: list[Fleet] = []

    def make(*boxes: Box) -> Fleet:
        made.append(Fleet(tmp_path, boxes))
        return made[-1]

    yield make
    for fleet in made:
        fleet.pool.close()


@pytest.mark.parametrize("slowness", [0.5, 1.0, 2.0])
def test_a_faster_or_slower_machine_gives_the_same_values(fleet_of: Make, slowness: float) -> None:
    evaluator = fleet_of(Box("anna", Timed(slowness)), Box("berta", Timed(3 * slowness))).evaluator()
    scores = evaluator.evaluate([*ALONE, *SPLITS])
    expected = [true_s(inner().candidate(plan)) for plan in [*ALONE, *SPLITS]]
    assert [score.value for score in scores] == pytest.approx(expected, rel=1e-12)
    assert {score.box for score in scores} >= {"anna", "berta"}


def test_the_score_says_which_machine_measured_it(fleet_of: Make) -> None:
    boxes = [Box("anna"), Box("berta")]
    evaluator = fleet_of(*boxes).evaluator()
    counts = Counter(score.box for score in evaluator.evaluate([*ALONE, *SPLITS]))
    for box in boxes:
        assert counts[box.name] == sum(candidate.devices is not None for candidate in box.runner.opened)


def test_this_machine_measures_what_others_are_compared_with(fleet_of: Make) -> None:
    here, box = Timed(), Box("anna")
    fleet = fleet_of(box)
    scores = fleet.evaluator(inner(here)).evaluate([*ALONE, *SPLITS])
    assert [score.box for score in scores[:2]] == [fleet.boxes.here] * 2
    assert {candidate.target for candidate in box.runner.opened if candidate.devices is None} == {"CPU_A"}
    assert fleet.evaluator().num_at_once == 2


def test_a_single_plan_is_measured_here(fleet_of: Make) -> None:
    fleet = fleet_of(Box("anna"))
    evaluator = fleet.evaluator()
    assert {evaluator.evaluate([plan])[0].box for plan in [*ALONE, *SPLITS]} == {fleet.boxes.here}


def test_without_a_device_that_runs_all_the_first_plan_is_what_others_are_compared_with(fleet_of: Make) -> None:
    supported = SUPPORTED.copy()
    supported[0, 1] = supported[5, 0] = False
    legal = [plan for plan in SPLITS if plan.placement[0] == 0 and plan.placement[5] == 1]
    scores = fleet_of(Box("anna", Timed(2.0))).evaluator(inner(of=problem(supported))).evaluate(legal)
    assert [score.value for score in scores] == pytest.approx([true_s(inner().candidate(plan)) for plan in legal])
    assert "anna" in {score.box for score in scores}


def test_an_illegal_plan_goes_to_no_machine(fleet_of: Make) -> None:
    supported = SUPPORTED.copy()
    supported[:, 1] = False
    box = Box("anna")
    scores = fleet_of(box).evaluator(inner(of=problem(supported))).evaluate([ALONE[0], *SPLITS])
    assert {score.failure for score in scores[1:]} == {UNSUPPORTED}
    assert not box.runner.opened


def test_a_candidate_that_fails_on_a_machine_says_why_and_the_machine_goes_on(fleet_of: Make) -> None:
    box, target = Box("anna", Timed(failing=["CPU_A,CPU_B"])), Timed(failing=["CPU_A,CPU_B"])
    evaluator = fleet_of(box).evaluator(inner(target))
    for _ in range(2):
        scores = evaluator.evaluate([*ALONE, *SPLITS])
        assert {score.failure for score in scores[2:]} == {"CPU_A,CPU_B does not run"}
        assert "anna" in {score.box for score in scores[2:]}


@pytest.mark.parametrize(("num_losses", "num_hosts"), [(1, 2), (2, 1)])
def test_what_a_lost_worker_had_is_measured_elsewhere(fleet_of: Make, num_losses: int, num_hosts: int) -> None:
    fleet = fleet_of(Box("anna", num_losses=num_losses), Box("berta"))
    plans, evaluator = [*ALONE, *SPLITS], fleet.evaluator()
    for _ in range(100):  # the other machines may be so fast that nothing is left for one
        scores = evaluator.evaluate(plans)
        assert [score.value for score in scores] == [pytest.approx(true_s(inner().candidate(plan))) for plan in plans]
        if len(fleet.said) == num_losses:
            break
    assert len(fleet.boxes.hosts) == num_hosts
    assert [line.split(" (")[0] for line in fleet.said] == ["anna is lost", "anna measures no more"][:num_losses]


def test_a_machine_on_which_the_reference_does_not_run_measures_no_more(fleet_of: Make) -> None:
    fleet = fleet_of(Box("anna", Timed(failing=["CPU_A"])))
    scores = fleet.evaluator().evaluate([*ALONE, *SPLITS])
    assert {score.box for score in scores} == {fleet.boxes.here}
    assert fleet.said == [
        "anna measures no more (what candidates are compared with does not run: CPU_A does not run); "
        "what it had to measure is measured on another machine"
    ]


def test_a_resumed_search_goes_on_with_the_reference_of_the_part_before(fleet_of: Make) -> None:
    past = [Event(ALONE[0], Score(7e-3), 1.0), Event(ALONE[1], Score.failed("crashed"), 2.0)]
    scores = fleet_of(Box("anna")).evaluator(past=past).evaluate(SPLITS)
    expected = [7 / 6 * true_s(inner().candidate(plan)) for plan in SPLITS]
    assert [score.value for score in scores] == pytest.approx(expected)


def test_machines_of_another_kind_take_no_part_and_it_is_said_what_differs(fleet_of: Make) -> None:
    fleet = fleet_of(Box("anna", differs=True), Box("berta"))
    assert [host.name for host in fleet.boxes.hosts] == ["berta"]
    assert len(fleet.said) == 1
    assert fleet.said[0].startswith("anna takes no part in measuring: its processor is Another, not ")


def test_workers_on_one_machine_are_one_box_and_this_machine_is_none_of_the_others(fleet_of: Make) -> None:
    boxes = [Box("anna"), Box("anna"), Box("a container on anna", machine="anna"), Box("at home", machine="here")]
    fleet = fleet_of(*boxes)
    assert fleet.boxes.hosts == boxes[:1]
    assert not fleet.said
