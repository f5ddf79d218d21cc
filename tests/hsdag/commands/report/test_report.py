"""Reports of kept searches: whole, unfinished, and damaged ones."""

from __future__ import annotations

import shlex
from pathlib import Path

import hsdag
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RunFolder
from hsdag.commands.report.graph import PlacedGraph
from hsdag.commands.report.words import UNFINISHED, environment_of, next_steps_of, sentence_of
from hsdag.ir.device import DeviceSpec
from hsdag.search.evaluators.base import Score
from tests.hsdag.commands.report.examples import BEGUN, EVENTS, FAST, PROFILE, RESULT, RUN, Example, event


def test_ops_are_where_the_placement_has_them(kept_search: PlaceResult) -> None:
    placed = PlacedGraph.of(RunFolder.load(kept_search))
    found = {placed.graph.canonical_names[v]: placed.devices[d] for v, d in enumerate(placed.device.tolist())}
    assert found == kept_search.placement.affinity


def test_the_placement_file_stands_for_the_run_beside_it(kept_search: PlaceResult, tmp_path: Path) -> None:
    assert kept_search.run_folder is not None
    result = hsdag.report(kept_search.run_folder.with_suffix(".json"), tmp_path / "report.html")
    assert result.files == (tmp_path / "report.html",)
    page = result.files[0].read_text().replace("&#39;", "'")
    assert all(f">{each}</p>" in page for each in kept_search.summary)
    warned = RESULT.model_copy(update={"sentence": "a.", "warnings": ("b", "c"), "bound": "most"})
    assert warned.summary == (RESULT.run, "a.", "Warning: b.", "Warning: c.", "most")


def test_the_best_of_a_search_that_has_not_ended_is_told() -> None:
    assert sentence_of(BEGUN) == f"{UNFINISHED} Nothing has been measured yet."
    for events, words in (
        (EVENTS, "2 placements were measured, the best at 7.5 ms"),
        ([event(1.0, Score(0.01))], "1 placement was measured, the best at 10 ms"),
    ):
        assert sentence_of(Example(events, PROFILE, None)) == f"{UNFINISHED} {words}; none is proven to be faster yet."


def test_what_to_do_next_is_to_go_on_to_search_longer_or_to_deploy_and_check() -> None:
    def advised(run: RunFolder) -> list[str]:
        return [f"{each.text} {each.code}" for each in next_steps_of(run)]

    begin = ["hsdag", "place", RUN.record.model_path or "", "--devices", FAST]
    go_on = f"The search can go on where it stopped. {shlex.join([*begin, '--resume', '--run', str(RUN.path)])}"
    stopped = Example(EVENTS, PROFILE, RESULT.model_copy(update={"interrupted": True}))
    assert advised(BEGUN) == advised(stopped) == [go_on]
    alone = RESULT.placement.model_copy(update={"affinity": dict.fromkeys(RESULT.placement.affinity, FAST)})
    use, longer = advised(Example(EVENTS, PROFILE, RESULT.model_copy(update={"placement": alone})))
    assert use.endswith("'CPU')")  # in OpenVINO's words, whatever the device is called
    assert longer.endswith(f"may find more. {shlex.join([*begin, '--budget', '20s'])}")
    deploy, check = advised(Example(EVENTS, PROFILE, RESULT))
    assert f"compiled = hsdag.compile_model({RUN.record.model_path!r}, " in deploy
    assert "hsdag bench" in check
    kept_elsewhere = RESULT.model_copy(update={"placement_file": "out.json"})
    assert advised(Example(EVENTS, PROFILE, kept_elsewhere))[1].endswith("--placement out.json")
    assert advised(Example(EVENTS, PROFILE, RESULT, "cuda")) == [check]


def test_the_environment_has_the_settings_limits_and_devices_of_the_search() -> None:
    run = Example(EVENTS, PROFILE, RESULT)
    devices = [DeviceSpec("A", "CPU", {"INFERENCE_NUM_THREADS": "2"}), DeviceSpec("B", "GPU")]
    words = ("--memory", "A=1GB", "--pin", "a b=A")
    run.record = run.record.model_copy(update={"changes": {"chains": "2"}, "devices": devices, "arguments": words})
    known = environment_of(run)
    assert known["method"] == "auto, preset default, chains=2"
    assert known["options"] == "--memory A=1GB --pin 'a b=A'"
    assert (known["A is"], known["B is"], known["budget"]) == ("CPU[INFERENCE_NUM_THREADS=2]", "GPU", "5 s")
    assert environment_of(BEGUN)["method"] == "auto, preset default"
