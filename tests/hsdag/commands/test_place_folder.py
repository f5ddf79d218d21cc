"""Placing a folder: one model after another, a failure costs only its model, an interrupt ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hsdag.commands.outcome import PlaceResult
from hsdag.commands.place_folder import Outcome, holds_models, models_in, place_folder
from hsdag.ir.errors import DeviceError, ModelError
from hsdag.ir.placement import Placement
from hsdag.search.result_file import ResultRecord, write_result
from hsdag.search.run_folder import RunRecord
from hsdag.search.verifying import Verdict

PlaceOne = Callable[[Path, Path, bool], PlaceResult]


def result(interrupted: bool = False) -> PlaceResult:
    placement = Placement.model_validate(
        {
            "model": {"name": "m", "fingerprint": "sha256:" + "0" * 64},
            "devices": [{"name": "CPU", "plugin": "CPU", "properties": {}}],
            "affinity": {"x": "CPU"},
            "method": "best-device",
            "seed": 0,
            "objective": "latency",
            "executor": "hetero",
        }
    )
    return PlaceResult(placement, (), {}, Verdict("cpu", 0.0), "It is on CPU.", interrupted=interrupted)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three model files, a SavedModel, and what is none."""
    for name in ("a.xml", "b.onnx", "c.tflite", "a.bin", "notes.txt", "d.placement.json"):
        (tmp_path / name).touch()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "inner.xml").touch()
    return tmp_path


def outcomes(folder: Path, place_one: PlaceOne, **options: object) -> dict[str, str]:
    found = place_folder(folder, place_one, **options)  # type: ignore[arg-type]
    return {each.model.name: each.outcome.value for each in found.models}


def test_models_are_files_by_their_suffix_and_folders_that_are_models(folder: Path) -> None:
    assert [path.name for path in models_in(folder)] == ["a.xml", "b.onnx", "c.tflite", "saved"]
    assert holds_models(folder)
    assert not holds_models(folder / "saved")
    (folder / "empty").mkdir()
    with pytest.raises(ModelError, match=r"is a folder without a model; models end in .xml, .onnx"):
        models_in(folder / "empty")


def test_a_model_that_fails_costs_no_other(folder: Path) -> None:
    def place_one(model: Path, _run: Path, _resume: bool) -> PlaceResult:
        if model.name == "b.onnx":
            raise DeviceError("no device runs it")
        if model.name == "c.tflite":
            raise ZeroDivisionError("by zero")
        return result()

    found = place_folder(folder, place_one)
    assert [each.outcome.value for each in found.models] == ["placed", "failed", "failed", "placed"]
    assert found.models[1].reason == "no device runs it"
    assert found.models[2].reason == "a defect of hsdag: ZeroDivisionError: by zero"
    assert (found.count(Outcome.FAILED), found.count(Outcome.PLACED)) == (2, 2)
    assert (folder / "a.placement.json").is_file()
    assert not (folder / "b.placement.json").exists()


def searched(folder: Path, name: str, *, interrupted: bool | None = False, **record: object) -> None:
    """What a search leaves; without a result where ``interrupted`` is None, as a killed one has none."""
    result().placement.save(folder / f"{name}.placement.json")
    run = folder / f"{name}.placement.run"
    run.mkdir()
    (run / "events.jsonl").touch()
    model, devices = result().placement.model, list(result().placement.devices)
    about = {"method": "heft", "preset": "default", "seed": 0, "objective": "latency", "num_units": 1, **record}
    (run / "run.json").write_text(RunRecord(model=model, devices=devices, **about).model_dump_json())  # type: ignore[arg-type]
    if interrupted is not None:
        ended = ResultRecord(
            answer={"interrupted": interrupted}, placement=result().placement, model_path=None, samples_s={},
            environment={}, budget_s=1.0, finished="2026-01-01T00:00:00+00:00",
        )  # fmt: skip
        write_result(ended, run / "result.json")


def resumed(folder: Path, **settings: object) -> dict[str, bool]:
    """The models that are not skipped, and whether their searches go on."""
    seen = {}

    def place_one(model: Path, _run: Path, resume: bool) -> PlaceResult:
        seen[model.name] = resume
        return result()

    found = outcomes(folder, place_one, resume=True, settings=settings)
    assert {name for name, outcome in found.items() if outcome == "skipped"} == set(found) - set(seen)
    return seen


def test_resuming_skips_what_is_finished_and_goes_on_with_what_was_interrupted(folder: Path) -> None:
    searched(folder, "a")
    searched(folder, "b", interrupted=True)
    assert resumed(folder) == {"b.onnx": True, "c.tflite": False, "saved": False}
    assert outcomes(folder, lambda *_: result())["a.xml"] == "placed"


def test_the_placement_of_a_search_before_the_one_that_was_killed_is_not_finished(folder: Path) -> None:
    searched(folder, "a", interrupted=None)
    assert resumed(folder)["a.xml"] is True


def test_what_was_searched_with_other_limits_is_not_skipped(folder: Path) -> None:
    searched(folder, "a", max_difference=1e-3, pins=("x=CPU",))
    searched(folder, "b")
    kept = resumed(folder, max_difference=1e-3, pins=("x=CPU",))
    assert kept == {"b.onnx": True, "c.tflite": False, "saved": False}


def test_an_interrupt_ends_the_present_model_and_reaches_no_other(folder: Path) -> None:
    stopped: list[bool] = []

    def place_one(_model: Path, _run: Path, _resume: bool) -> PlaceResult:
        stopped.append(True)
        return result(interrupted=True)

    found = outcomes(folder, place_one, should_stop=lambda: bool(stopped))
    assert list(found.values()) == ["interrupted", "not reached", "not reached", "not reached"]
    assert (folder / "a.placement.json").is_file()


def test_two_models_of_one_name_have_a_placement_each(tmp_path: Path) -> None:
    (tmp_path / "m.xml").touch()
    (tmp_path / "m.onnx").touch()
    place_folder(tmp_path, lambda *_: result(), output=tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"m.xml.placement.json", "m.onnx.placement.json"}
