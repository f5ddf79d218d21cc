"""What a search says of itself: counts, failures, and what a short budget lacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hsdag.cli.app import run
from hsdag.ir.errors import DeviceError
from hsdag.ir.processes import Request, WorkerClient
from hsdag.placing.place import run_place, speed_sentence, too_few_rounds
from hsdag.placing.result import Tally
from hsdag.placing.searching import Search
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.latency import Protocol, Ratio
from hsdag.runtime.measuring.messages import Call, ask
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.measuring.worker import Worker
from hsdag.runtime.problem.plan import Plan
from hsdag.scoring.base import Evaluator, Score
from hsdag.scoring.recording import Budget, Event, RecordingEvaluator
from hsdag.search.driver import Watcher, budget_shortage
from hsdag.search.options import PlaceOptions

DIED = "the worker was ended by SIGFPE"
EQUAL = Ratio(1.0, 1.0, 1.0)


def event(failure: str | None) -> Event:
    score = Score(1e-3) if failure is None else Score.failed(failure)
    return Event(Plan(np.zeros(3, dtype=np.int64)), score, 5.0)


def test_placements_that_all_failed_are_not_called_measured() -> None:
    tally = Tally.of([event(DIED)] * 11)
    assert tally.words == f"11 placements were tried; 11 failed ({DIED}), none was measured"
    sentence = speed_sentence("CPU", "CPU", EQUAL, {}, uncompared=tally.words)
    assert sentence == f"{tally.words}; the placement is all on CPU."


def test_failures_are_counted_apart_by_reason() -> None:
    tally = Tally.of([event(None)] * 3 + [event(DIED)] * 2 + [event("no answer within 30 s")], simulated=40)
    assert tally.failures == {DIED: 2, "no answer within 30 s": 1}
    assert tally.words == (
        f"6 placements were tried; 3 failed ({DIED}; no answer within 30 s), 3 measured, 40 simulated"
    )


def test_where_none_failed_all_were_measured() -> None:
    assert Tally.of([event(None)] * 3).words == "3 placements were measured"
    assert Tally.of([event(None)]).words == "1 placement was measured"


def test_a_lead_from_too_few_rounds_is_named_and_not_claimed() -> None:
    ratios = {"placement 1": Ratio(1.38, 1.29, 1.48, 4), "placement 2": Ratio(0.9, 0.8, 1.0, 4)}
    sentence = speed_sentence("CPU", "CPU", EQUAL, {}, too_few_rounds(ratios))
    assert sentence == (
        "Placement 1 was faster, but in 4 rounds only, too few to say so where 6 are needed: raise --budget; "
        "the placement is all on CPU."
    )
    assert not too_few_rounds({"placement 1": Ratio(1.38, 1.29, 1.48, 6)})
    over = Ratio(1.2, 0.1, 9.0, 2)
    assert "same placement (from 2 rounds, too few for an interval)" in speed_sentence(
        "placement 1", "CPU", EQUAL, {}, over_twin=over
    )


def test_what_there_is_against_the_answer_is_said() -> None:
    sentence = speed_sentence("CPU", "CPU", EQUAL, {}, {"CPU": "its outputs could not be compared with cpu: it hung"})
    assert sentence == (
        "No placement beat CPU; the placement is all on CPU; "
        "note that its outputs could not be compared with cpu: it hung."
    )


def test_a_budget_too_short_for_a_split_is_said_in_the_answer(tiny_bert: Path) -> None:
    quick = Protocol(min_rounds=2, max_rounds=2, turn_s=0.01)
    outcome = run_place(tiny_bert, PlaceOptions(partition_cpu=2, reward="measured", budget_s=1e-3, protocol=quick))
    assert "No split placement was tried: a placement takes" in outcome.sentence
    assert "is enough for 10" in outcome.sentence
    assert outcome.tally.tried <= 1


def test_a_method_that_proposes_no_split_is_named_as_the_reason_for_there_being_none(tiny_bert: Path) -> None:
    quick = Protocol(min_rounds=2, max_rounds=2, turn_s=0.01)
    options = PlaceOptions(partition_cpu=2, method="best-device", reward="measured", budget_s=30.0, protocol=quick)
    assert (
        "No split placement was tried, since the method best-device proposed none"
        in run_place(tiny_bert, options).sentence
    )


@pytest.mark.slow
def test_a_budget_too_short_for_compiling_still_compares_a_simulated_split_and_says_so_at_once(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, phases = Session.profile, list[str]()

    def slow(*args: Any, **how: Any) -> ModelProfile:
        profile = original(*args, **how)
        return replace(profile, times=tuple(replace(times, compile_s=9.0) for times in profile.times))

    monkeypatch.setattr(Session, "profile", slow)
    quick = Protocol(min_rounds=2, max_rounds=2, turn_s=0.01)
    options = PlaceOptions(partition_cpu=2, budget_s=2.0, finalists=1, protocol=quick)
    outcome = run_place(tiny_bert, options, watcher=Watcher(on_phase=phases.append))
    said = next(k for k, phase in enumerate(phases) if phase.startswith("a placement takes 9 s"))
    assert phases[said].endswith("is enough for 10; nothing is measured before the comparison")
    assert phases[said + 1] == "searching"
    assert outcome.tally.tried == 0
    assert outcome.tally.simulated >= 18
    assert "placement 1" in {row.name for row in outcome.rows}
    assert phases[-1].startswith("more than the budget of 2 s was spent: reading ")


def test_a_model_that_could_not_be_profiled_is_said_to_be_measured_instead(
    tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> ModelProfile:
        raise DeviceError("device 'CPU_1' cannot be profiled: it hung")

    monkeypatch.setattr(Session, "profile", failing)
    quick = Protocol(min_rounds=2, max_rounds=2, turn_s=0.01)
    outcome = run_place(tiny_resnet, PlaceOptions(partition_cpu=2, max_evaluations=1, finalists=1, protocol=quick))
    expected = "device 'CPU_1' cannot be profiled: it hung; every placement was measured instead"
    assert outcome.warnings[0] == expected
    assert f"Warning: {expected}." in outcome.sentence


def test_devices_that_differ_in_threads_are_asked_once_what_they_run_and_hetero_not_at_all(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = resolve_devices("A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=2]", None)
    original, asked = WorkerClient.call, list[str]()

    def noted(client: WorkerClient, request: Request[Any], limit_s: float, compiling_s: float = 0.0) -> Any:
        asked.append(request.method if isinstance(request, Call) else type(request).__name__)
        return original(client, request, limit_s, compiling_s)

    monkeypatch.setattr(WorkerClient, "call", noted)
    with Session(tiny_bert, devices) as session:
        session.problem()
        chosen = session.automatic_ops("HETERO:CPU_B,CPU_A")
        assert [kind for kind in asked if kind != "ReadModel"] == ["choices"]
        assert chosen == original(session.client, ask(Worker.choices, "HETERO:CPU_B,CPU_A"), 60.0)


def test_the_reference_and_the_tolerance_are_in_the_json_answer(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["place", str(tiny_bert), "--devices", "CPU", "--reference", "op-by-op", "--max-difference", "0.125"]
    assert run([*arguments, "--json", "-o", str(tmp_path / "out.json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"]["versus"], document["verdict"]["tolerance"]) == ("op-by-op", 0.125)
    assert document["verdict"]["difference"]["max_relative"] <= 0.125


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--reference", "gpu", "unknown reference 'gpu'; choose one of cpu, onnxruntime, op-by-op"),
        ("--max-difference", "-1", "--max-difference must be a number and not negative, not -1"),
    ],
)
def test_a_wrong_reference_or_tolerance_is_one_line(
    tiny_bert: Path, option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["place", str(tiny_bert), option, value]) == 2
    assert capsys.readouterr().err == f"hsdag: {message}\n"


def test_a_short_budget_is_said_to_be_short_by_what_ten_placements_take() -> None:
    assert budget_shortage(20.0, 6.0, 12.0) == (
        "a placement takes 6 s to compile and measure, and 12 s are left for others; --budget 68s is enough for 10"
    )
    assert budget_shortage(20.0, 1.0, 12.0) is None


class Unused(Evaluator):
    """Evaluates nothing."""

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        raise NotImplementedError


def test_a_search_says_so_after_its_first_placement() -> None:
    phases: list[str] = []
    recorder = RecordingEvaluator(Unused(), Budget(seconds=20.0), past=[event(None)])
    search = SimpleNamespace(watcher=Watcher(on_phase=phases.append), options=PlaceOptions(budget_s=20.0))
    Search._tell_what_it_takes(cast(Search, search), event(None), recorder)
    assert [phase.partition(" to compile")[0] for phase in phases] == ["a placement takes 5 s"]
