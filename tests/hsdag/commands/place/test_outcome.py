"""What a search says of itself: counts, failures, and what a short budget lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hsdag.base.processes import Request, WorkerClient
from hsdag.commands.place.answer import Alternatives, Lead, NotChosen, ignored, speed_sentence, too_few_rounds
from hsdag.commands.place.comparison import Candidates
from hsdag.commands.place.copies import Copies
from hsdag.commands.place.first_plans import staged
from hsdag.commands.place.kinds import Kinds
from hsdag.commands.place.outcome import Outcome
from hsdag.commands.place.place import proposed_candidates, slow_devices, was_timed
from hsdag.commands.place.records import Tally, Verdict
from hsdag.commands.place.search import Course, Search
from hsdag.commands.place.search_time import SearchTime
from hsdag.commands.place.session import Session
from hsdag.commands.place.wanted import Wanted
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.machine.devices import DeviceSet, resolve_devices
from hsdag.runtime.measuring.latency import LatencyComparison, Ratio, Samples
from hsdag.runtime.measuring.measurer import Measurer
from hsdag.runtime.measuring.messages import Call, Candidate, ask
from hsdag.runtime.problem.pins import Pin
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.driver import Watcher
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Event
from hsdag.search.options import PlaceOptions

DIED = "the worker was ended by SIGFPE"
EQUAL = Ratio(1.0, 1.0, 1.0)


def event(failure: str | None) -> Event:
    score = Score(1e-3) if failure is None else Score(failure=failure)
    return Event(Plan(np.zeros(3, dtype=np.int64)), score, 5.0)


@pytest.mark.parametrize(
    ("events", "simulated", "words"),
    [
        ([DIED] * 11, 0, f"11 placements were tried; 11 failed ({DIED}), none was measured"),
        (
            [None] * 3 + [DIED] * 2 + ["no answer within 30 s"],
            40,
            f"6 placements were tried; 3 failed ({DIED}; no answer within 30 s), 3 measured, 40 simulated",
        ),
        ([None, *"abcd"], 0, "5 placements were tried; 4 failed (a; b; c; ...), 1 measured"),
        ([None] * 3, 0, "3 placements were measured"),
        ([None], 2, "1 placement was measured, 2 simulated"),
    ],
)
def test_failed_placements_are_counted_by_reason_and_not_called_measured(
    events: list[str | None], simulated: int, words: str
) -> None:
    assert Tally.of(list(map(event, events)), simulated).words == words


FASTER, BEATEN = Ratio(1.25, 1.2, 1.3), Ratio(0.5, 0.4, 0.6)
GAIN = "The placement is 25.0% faster (95% interval 20.0% to 30.0%) than the best single device, CPU"
WHY = {"B": "its outputs differ by 0.3"}


WON, TIED = Lead("placement 1", "CPU", FASTER), Lead("CPU", "CPU", EQUAL)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((TIED,), "No placement beat CPU."),
        ((Lead("placement 1", None, EQUAL),), "No single device ran the whole model; the placement does."),
        ((WON, None, Alternatives({"AUTO:CPU": BEATEN})), f"{GAIN}."),
        (
            (TIED, None, Alternatives({"AUTO:CPU": FASTER}, "without pins")),
            "No placement beat CPU; OpenVINO's own AUTO:CPU measured faster than the placement without pins.",
        ),
        (
            (TIED, NotChosen({"placement 1": "it hung", "CPU": "it differs"})),
            "Placement 1 was faster, but it hung.",
        ),
        (
            (TIED, NotChosen(nearest=("placement 1", Ratio(0.8, 0.7, 0.9)))),
            "No placement beat CPU: the nearest, placement 1, takes 1.25 times as long (95% interval 1.11 to 1.43).",
        ),
        (
            (TIED, NotChosen(nearest=("shards 1", Ratio(1.2, 0.84, 1.85)))),
            "Not decided: shards 1 and CPU could not be told apart (0.84 to 1.85 times as fast, 95% interval; more "
            "rounds would tell).",
        ),
        (
            (Lead("placement 1", "B", BEATEN), NotChosen(disallowed=WHY)),
            "The best single device, B, is ruled out: its outputs differ by 0.3; it takes 0.50 times as long as "
            "the placement (95% interval 0.40 to 0.60).",
        ),
        (
            (Lead("A", "A", EQUAL), NotChosen(disallowed=WHY)),
            "No placement beat A; B was faster, but is ruled out: its outputs differ by 0.3.",
        ),
        (
            (WON, None, Alternatives(over_twin=Ratio(1.5, 1.4, 1.6), over_start=BEATEN)),
            f"{GAIN}; HETERO takes 1.50 times as long with the same placement (95% interval 1.40 to 1.60); the one to "
            "start with takes 0.50 times as long (95% interval 0.40 to 0.60).",
        ),
        (
            (replace(WON, answer="start"), None, Alternatives(over_twin=Ratio(1.2, 0.1, 9.0, 2), over_start=EQUAL)),
            f"{GAIN}; HETERO takes 1.20 times as long with the same placement (from 2 rounds, too few for an "
            "interval); it is the one to start with.",
        ),
        ((TIED, NotChosen(uncompared="none ran")), "None ran."),
        (
            (TIED, NotChosen(too_few_rounds({"shards 1": Ratio(1.4, 1.0, 2.0, 2)}))),
            "Not decided: shards 1 was faster, but in 2 rounds only, too few to say so where 6 are needed.",
        ),
        (
            (Lead("placement 1", "CPU", Ratio(2.12, 1.21, 3.7), busy=0.85),),
            "Not decided: the placement measured 112.0% faster (95% interval 21.0% to 270.0%) than the best single "
            "device, CPU, while other programs took 85% of the processors; end them, and place the model again.",
        ),
        ((replace(WON, busy=0.85),), f"{GAIN}."),  # narrow, whatever else ran
        (
            (replace(WON, takes="times the memory"),),
            "The best single device, CPU, takes 1.25 times the memory of the placement (95% interval 1.20 to 1.30).",
        ),
    ],
)
def test_the_sentence_claims_no_more_than_was_measured(given: tuple[Any, ...], sentence: str) -> None:
    assert speed_sentence(*given) == sentence


def candidates(*finalists: str, **more: Any) -> Candidates:
    """Candidates of a comparison: placements of these names."""
    return Candidates(dict.fromkeys(finalists, Candidate("a split")), {}, **more)


def test_faster_candidates_that_are_no_answer_are_named_and_the_nearest_is_the_best_of_the_others() -> None:
    medians = {"CPU": 3.0, "B": 2.0, "C": 4.0, "start": 3.0}
    measured = LatencyComparison({name: Samples(((value,),)) for name, value in medians.items()}, {})
    ratios = {"CPU": EQUAL, "placement 1": Ratio(0.9, 0.8, 1.0), "placement 2": Ratio(0.95, 0.8, 1.1), "lost": FASTER}
    final: Any = SimpleNamespace(comparison=measured, ratios=ratios, answer="CPU", best_single="CPU")
    final.verdicts = {"lost": Verdict("cpu", 0.1, reason="it hung"), "CPU": Verdict("cpu", 0.1)}
    disallowed = dict.fromkeys(("B", "C", "CPU", "start", "unknown"), "a pin")
    final.whole_devices = ("B", "C", "unknown")
    final.candidates = candidates("placement 1", "lost", "placement 2", "never ran", disallowed=disallowed)
    found = NotChosen.of(final)
    assert found.disallowed == {"B": "a pin", "CPU": "a pin"}
    assert found.whole_devices == {"B": "run the model on B unless you need the parts for something else"}
    assert found.rejected == {"lost": "it hung"}
    assert found.nearest == ("placement 2", ratios["placement 2"])
    final.candidates = candidates("lost", disallowed=disallowed)
    assert NotChosen.of(final).nearest is None


def test_a_lead_from_too_few_rounds_is_not_claimed() -> None:
    ratios = {"placement 1": Ratio(1.38, 1.29, 1.48, 4), "placement 2": Ratio(0.9, 0.8, 1.0, 4)}
    why = "in 4 rounds only, too few to say so where 6 are needed"
    assert too_few_rounds(ratios) == {"placement 1": why}
    assert not too_few_rounds({"placement 1": Ratio(1.38, 1.29, 1.48, 6)})


SHORT = "only 12 s are left, and each placement takes 6 s"
ONE, TWO = Plan(np.zeros(3, dtype=np.int64)), Plan(np.array([0, 1, 1]))


@pytest.mark.parametrize(
    ("failures", "events", "left_s", "why"),
    [
        (
            {"CPU": "hung", "placement 1": "died", "placement 2": "died"},
            [],
            60.0,
            "no split placement was compared (died)",
        ),
        ({}, [(ONE, None), (TWO, DIED)], 60.0, f"1 placement was tried; 1 failed ({DIED}), none was measured"),
        ({}, [(ONE, None)], 60.0, "no split placement was tried, since the method sa proposed none"),
        ({}, [], 12.0, f"no split placement was tried: {SHORT}"),
    ],
)
def test_why_no_split_was_compared_is_said_unless_one_was(
    failures: dict[str, str], events: list[tuple[Plan, str | None]], left_s: float, why: str
) -> None:
    found = LatencyComparison({"CPU": Samples(((1.0,),))}, failures)
    scores = [(plan, Score(1.0) if failure is None else Score(failure=failure)) for plan, failure in events]
    course = SimpleNamespace(events=[Event(plan, score, 1.0) for plan, score in scores])
    search: Any = SimpleNamespace(course=course, time=SimpleNamespace(left_s=left_s))
    opened = {name: SimpleNamespace(compile_s=seconds) for name, seconds in (("CPU", 6.0), ("placement 1", 2.0))}
    search.options, search.problem = PlaceOptions(method="sa", budget_s=20.0), SimpleNamespace(num_units=2)
    final: Any = SimpleNamespace(comparison=found, opened=opened, candidates=candidates("placement 1", "shards 1"))
    assert Outcome(search, final).uncompared == why
    search.problem.num_units = 1
    tied = "no split placement was tried, since all ops have to stay together"
    assert Outcome(search, final).uncompared == (why if failures or DIED in why else tied)
    final.candidates = candidates("CPU")
    assert Outcome(search, final).uncompared is None


def test_openvinos_own_choices_are_said_to_be_made_without_the_limits_that_were_given() -> None:
    assert ignored(PlaceOptions()) is None
    given = PlaceOptions(pins=(Pin("a", "B"),), memory_bytes={"A": 1.0}, max_difference=0.0)
    assert ignored(given) == "without pins and memory and max_difference"


def test_devices_that_differ_in_threads_are_asked_once_what_they_run_and_hetero_not_at_all(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = resolve_devices("A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=2]", None)
    original, asked = WorkerClient.call, list[str]()

    def noted(client: WorkerClient, request: Request[Any], limit_s: float, compiling_s: float = 0.0) -> Any:
        asked.append(request.name if isinstance(request, Call) else type(request).__name__)
        return original(client, request, limit_s, compiling_s)

    monkeypatch.setattr(WorkerClient, "call", noted)
    with Session(tiny_bert, devices) as session:
        session.problem()
        chosen = session.automatic_ops("HETERO:CPU_B,CPU_A")
        assert [kind for kind in asked if kind != "ReadModel"] == ["choices"]
        assert chosen == original(session.client, ask(Measurer.choices, "HETERO:CPU_B,CPU_A"), 60.0)


@pytest.mark.parametrize(
    ("reward", "left_s", "is_short"), [("hybrid", 60.7, True), ("hybrid", 60.75, False), ("simulated", 1.0, False)]
)
def test_nothing_is_measured_before_the_comparison_where_not_even_devices_alone_and_a_split_can_be_timed(
    reward: str, left_s: float, is_short: bool
) -> None:
    notes: list[str] = []
    options = PlaceOptions(budget_s=40.0, reward=reward)
    profile: Any = SimpleNamespace(times=[SimpleNamespace(compile_s=s, time_s=np.array([0.25, s])) for s in (9.0, 1.0)])
    taken = SimpleNamespace(slowest_open_s=0.0, value_s=0.0, part_s=0.0)
    session: Any = SimpleNamespace(runner=SimpleNamespace(taken=taken), client=SimpleNamespace(start_s=0.0))
    wanted = Wanted(40.0)
    time = SearchTime(session, options, Watcher(on_note=notes.append), wanted, begin_s=0.0)
    time.profile = profile
    time.begin_search()
    time.left_s = left_s
    assert time.is_short(num_devices=2) is is_short
    end = "s are left, and each placement takes 20 s; nothing is measured before the comparison"
    assert [note.endswith(end) for note in notes] == [True] * is_short
    assert wanted.words == "With budget 190s there is time to measure 10 placements." * is_short


def searched(events: Sequence[tuple[list[int], float]], **found: Any) -> Search:
    """A search over three devices that measured plans, and what else it found."""
    devices = DeviceSet(tuple(DeviceSpec(name, "CPU") for name in "ABC"), ())
    session = SimpleNamespace(devices=devices, placed=lambda *_: Candidate("a split"))
    measured = [Event(Plan(np.array(placement)), Score(value), 1.0) for placement, value in events]
    given = {
        "plans": {},
        "finalists": [],
        "shardings": {},
        "copies": {},
        "under_hetero": None,
        "proposals": None,
        "kinds": Kinds(),
    } | found
    problem = SimpleNamespace(devices=tuple("ABC"))
    context = {"session": session, "problem": problem, "options": PlaceOptions(), "course": Course(measured)}
    return cast(Search, SimpleNamespace(**context, **given))


def test_devices_that_take_more_times_as_long_as_another_one_are_slow() -> None:
    alone = [([d, d], value) for d, value in enumerate((1.0, 2.0, 2.1))]
    measured = searched([*alone, ([0, 1], 0.5)])
    assert (slow_devices(measured, 2.0), slow_devices(measured, 1.0)) == ({"C"}, {"B", "C"})
    timed = searched([], kinds=Kinds({"A": 1.0, "B": 2.5}))  # nothing is known of the third one
    assert (slow_devices(timed, 2.0), slow_devices(searched([]), 1.0)) == ({"B"}, set())


def test_what_an_interrupt_leaves_to_be_compared_was_timed_before() -> None:
    split, other = Plan(np.array([0, 1])), Plan(np.array([1, 0]))
    plans = {"placement 1": split, "placement 2": other}
    known: dict[str, Any] = {"plans": plans, "shardings": {"shards 1": None}, "copies": {"copies 1": None}}
    found = searched([([0, 1], 1.0)], **known)
    assert [was_timed(found, name) for name in ("placement 1", "HETERO:placement 1", "placement 2")] == [1, 1, 0]
    assert not was_timed(found, "shards 1")
    assert not was_timed(found, "copies 1")
    timed = Kinds({"shards": 1.0, "copies": 1.0})
    assert was_timed(searched([], **known, kinds=timed), "shards 1")
    assert was_timed(searched([], **known, kinds=timed), "copies 1")
    measured = SimpleNamespace(best_times=0.7)
    assert was_timed(searched([], **known | {"proposals": measured}), "shards 1")


@pytest.mark.parametrize(("period_s", "first"), [(0.9, "copies 1"), (1.1, "placement 1")])
def test_what_is_expected_to_be_faster_than_every_measured_split_is_compared_first(period_s: float, first: str) -> None:
    split = Plan(np.array([0, 1]))
    known = {"finalists": [split], "plans": {"placement 1": split}, "copies": {"copies 1": Copies((0, 1), period_s)}}
    found = proposed_candidates(searched([([0, 1], 1.0), ([0, 0], 2.0)], **known))
    assert (next(iter(found)), set(found)) == (first, {"placement 1", "copies 1"})


def test_an_answer_of_hetero_is_compared_with_the_fastest_finalist_of_the_other_executor() -> None:
    names = ["placement 1", "placement 2", "HETERO:placement 1", "HETERO:placement 2"]
    samples = {name: Samples(((s, s),) * 3) for name, s in zip(names, (3.0, 2.0, 1.0, 4.0), strict=True)}
    final: Any = SimpleNamespace(
        answer=names[2], comparison=LatencyComparison(samples, {}), candidates=candidates(*names)
    )
    assert Outcome(searched([]), final)._other_executor()[0] == "placement 2"


@pytest.mark.parametrize(("memory_bytes", "boundaries"), [(4.0, [1]), (8.0, [])])
def test_where_memory_forces_a_split_the_stages_of_a_pipeline_are_among_what_is_measured(
    memory_bytes: float, boundaries: list[int]
) -> None:
    graph = graph_from_edges(["MatMul"] * 6, [(v, v + 1) for v in range(5)], flops=[1] * 6, output_bytes=[0] * 6)
    given: dict[str, Any] = {"weight_bytes": np.ones(6), "memory_bytes": np.full(2, memory_bytes)}
    link: dict[str, Any] = {"link_latency_s": np.full((2, 2), 0.1), "link_bandwidth_bytes_per_s": np.full((2, 2), 1e3)}
    costs = ScheduleProblem.from_graph(graph, np.ones((6, 2)), ("A", "B"), **link)
    problem = problem_of(replace(costs, **given))
    crossings = [int((np.diff(problem.expand(plan.placement)) != 0).sum()) for plan in staged(problem)]
    assert crossings == boundaries
