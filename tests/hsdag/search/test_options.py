"""Options: durations, ranges, and outputs that cannot be written."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from hsdag import api
from hsdag.cli.files import check_not_model, check_writable
from hsdag.cli.options import defaults
from hsdag.ir.errors import OptionError, OutputError
from hsdag.runtime.objectives import find_objective
from hsdag.search.options import PlaceOptions, parse_duration


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("250ms", 0.25)])
def test_durations_are_read_in_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["0", "0s", "-5s", "soon", "", "nan", "inf", "10 days"])
def test_what_is_no_positive_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--budget"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget_s": 0.0}, "more than zero"),
        ({"budget_s": float("nan")}, "more than zero"),
        ({"seed": -1}, "seed"),
        ({"max_evaluations": 0}, "at least 1"),
        ({"executor": "magic"}, "choose one of hetero"),
        ({"inputs": Path("none.npz")}, "no such file"),
    ],
)
def test_values_outside_their_range_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PlaceOptions(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["place", "solve", "simulate"])
def test_a_command_takes_every_option_of_its_api_call_with_its_default(name: str) -> None:
    of_programs = {"example_input", "watcher", "on_update", "on_better", "run_folder", "output"}
    parameters = signature(
        import_module(f"hsdag.cli.{'place' if name == 'place' else 'solve'}").__dict__[name]
    ).parameters
    expected = {each: default for each, default in defaults(getattr(api, name)).items() if each not in of_programs}
    assert {each: parameters[each].default for each in expected} == expected


def test_an_unknown_objective_is_answered_with_the_choices() -> None:
    with pytest.raises(OptionError, match="energy, latency, memory, throughput"):
        find_objective("cost")


def test_an_output_in_no_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="there is no folder"):
        check_writable(tmp_path / "none" / "out.json")
    with pytest.raises(OutputError, match="is a folder"):
        check_writable(tmp_path)


def test_a_file_beside_a_model_is_its_weights_for_an_ir_alone(tmp_path: Path) -> None:
    check_not_model([tmp_path / "u.bin", tmp_path / "u.csv"], tmp_path / "u.onnx")
    with pytest.raises(OutputError, match="is the model itself"):
        check_not_model([tmp_path / "u.bin"], tmp_path / "u.xml")
