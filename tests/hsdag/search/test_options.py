"""Options: durations, ranges, and the files that a command reads."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from hsdag import api
from hsdag.cli.files import model_files
from hsdag.cli.options import defaults
from hsdag.ir.errors import OptionError
from hsdag.runtime.objectives import find_objective
from hsdag.search.options import PlaceOptions, SearchOptions, parse_duration, parse_memory


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("250ms", 0.25)])
def test_durations_are_read_in_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["0", "0s", "-5s", "soon", "", "nan", "inf", "10 days"])
def test_what_is_no_positive_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--budget"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (SearchOptions, {"budget_s": 0.0}, "more than zero"),
        (SearchOptions, {"budget_s": float("nan")}, "more than zero"),
        (SearchOptions, {"seed": -1}, "between 0 and"),
        (SearchOptions, {"max_evaluations": 0}, "at least 1"),
        (PlaceOptions, {"executor": "magic"}, "choose one of auto, hetero"),
        (PlaceOptions, {"inputs": Path("none.npz")}, "no such file"),
        (PlaceOptions, {"max_difference": -0.1}, "--max-difference must be a number and not negative"),
    ],
)
def test_values_outside_their_range_are_refused(kind: type, change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(**change)


@pytest.mark.parametrize("name", ["place", "solve", "simulate"])
def test_a_command_takes_every_option_of_its_api_call_with_its_default(name: str) -> None:
    of_programs = {"example_input", "watcher", "progress", "on_update", "on_better", "run_folder", "output"}
    parameters = signature(
        import_module(f"hsdag.cli.{'place' if name == 'place' else 'solve'}").__dict__[name]
    ).parameters
    expected = {each: default for each, default in defaults(getattr(api, name)).items() if each not in of_programs}
    assert {each: parameters[each].default for each in expected} == expected


def test_an_unknown_objective_is_answered_with_the_choices() -> None:
    with pytest.raises(OptionError, match="energy, latency, memory, throughput"):
        find_objective("cost")


def test_a_file_beside_a_model_is_its_weights_for_an_ir_alone(tmp_path: Path) -> None:
    assert model_files(tmp_path / "u.onnx") == [tmp_path / "u.onnx"]
    assert model_files(tmp_path / "u.xml") == [tmp_path / "u.xml", tmp_path / "u.bin"]


def test_sizes_of_memory_are_read_in_their_units() -> None:
    assert parse_memory("GPU.0=8GB, GPU.1 = 1.5MiB,A=100") == {"GPU.0": 8e9, "GPU.1": 1.5 * 2**20, "A": 100.0}


@pytest.mark.parametrize("text", ["", "A", "A=", "A=0", "A=-1GB", "A=1XB", "=1GB", "A=1GB,A=2GB", "A=1GB,"])
def test_memory_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--memory"):
        parse_memory(text)
