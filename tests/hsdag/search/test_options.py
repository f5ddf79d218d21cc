"""Options: durations, ranges, and the files that a command reads."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from hsdag import api
from hsdag.base.errors import HsdagError, OptionError
from hsdag.cli.options import defaults
from hsdag.runtime.machine.energy_counters import ROOT
from hsdag.runtime.objectives import find_objective
from hsdag.runtime.problem.pins import Pin
from hsdag.search.evaluators.recording import Budget
from hsdag.search.options import (
    PlaceOptions,
    SearchOptions,
    SolveOptions,
    command_words,
    executor_of,
    parse_duration,
    parse_memory,
    recorded_options,
)


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("250ms", 0.25)])
def test_durations_are_read_in_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (SearchOptions, {"budget_s": 0.0}, "more than zero"),
        (SearchOptions, {"budget_s": float("nan")}, "more than zero"),
        (SearchOptions, {"seed": -1}, "between 0 and"),
        (SearchOptions, {"max_evaluations": 0}, "at least 1"),
        (SearchOptions, {"seed": 2**63}, "between 0 and"),
        (PlaceOptions, {"candidate_limit_s": 0.0}, "the time limit per candidate must be more than zero"),
        (PlaceOptions, {"max_difference": float("inf")}, "max_difference must be a number"),
        (PlaceOptions, {"reward": "luck"}, "choose one of"),
        (PlaceOptions, {"memory_bytes": {"A": 1.0}, "reward": "measured"}, "memory needs a search that simulates"),
        (PlaceOptions, {"executor": "magic"}, "choose one of auto, hetero"),
        (PlaceOptions, {"max_difference": -0.1}, "max_difference must be a number and not negative"),
    ],
)
def test_values_outside_their_range_are_refused(kind: type, change: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(**change)


@pytest.mark.parametrize("name", ["place", "solve", "simulate"])
def test_a_command_takes_every_option_of_its_api_call_with_its_default(name: str) -> None:
    of_programs = {"example_input", "watcher", "progress", "on_better", "run_folder", "output"}
    module = import_module(f"hsdag.cli.{'place' if name == 'place' else 'solve'}")
    parameters = signature(module.__dict__[name]).parameters
    expected = {each: default for each, default in defaults(getattr(api, name)).items() if each not in of_programs}
    assert {each: parameters[each].default for each in expected} == expected


def test_sizes_of_memory_are_read_in_their_units() -> None:
    assert parse_memory("GPU.0=8GB, GPU.1 = 1.5MiB,A=100") == {"GPU.0": 8e9, "GPU.1": 1.5 * 2**20, "A": 100.0}


WRONG: dict[str, tuple[Callable[[str], Any], list[str]]] = {
    "budget": (parse_duration, ["0", "0s", "-5s", "soon", "", "nan", "inf", "10 days"]),
    "memory": (parse_memory, ["", "A", "A=", "A=0", "A=-1GB", "A=1XB", "=1GB", "A=1GB,A=2GB", "A=1GB,"]),
}


@pytest.mark.parametrize(("option", "text"), [(option, text) for option in WRONG for text in WRONG[option][1]])
def test_durations_and_memory_of_another_form_are_refused(option: str, text: str) -> None:
    with pytest.raises(OptionError, match=option):
        WRONG[option][0](text)


def test_arguments_of_a_call_are_read_as_options() -> None:
    found = SolveOptions.of({"budget": "2m", "max_evaluations": 1, "pins": ["a=B"], "seed": 0, "other": 1})
    assert (found.budget, [pin.text for pin in found.pins], found.method) == (Budget(120.0, 1), ["a=B"], "auto")
    assert PlaceOptions(max_difference=0.0, seed=2**63 - 1).budget == Budget(60.0)
    assert PlaceOptions.of({"devices": ("A", "B"), "shape": None}).devices == "A,B"
    assert [executor_of(name) for name in ("auto", "hetero", "cuda")] == ["work-conserving", "hetero", "cuda"]


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {"reward": "hybrid", "reference": None, "pins": ()}),
        ({"pins": (Pin("a", "B"),), "memory_bytes": {"A": 1.0}}, {"pins": ("a=B",), "memory_bytes": {"A": 1.0}}),
        ({"max_difference": 0.1}, {"max_difference": 0.1, "reference": "cpu"}),
        ({"method": "hsdag", "preset": "paper"}, {"reward": "measured"}),
        ({"method": "hsdag", "preset": "paper", "reward": "hybrid"}, {"reward": "hybrid"}),
    ],
)
def test_a_run_records_its_options_in_plain_values(given: dict[str, Any], changed: dict[str, Any]) -> None:
    record = PlaceOptions(**given).record()
    assert record | changed == record
    assert set(record) == set(recorded_options()) >= {"method", "seed", "changes", "objective"}
    assert not set(record) & {"budget_s", "workers", "devices"}


@pytest.mark.parametrize(
    ("objective", "given", "message"),
    [
        ("memory", {"reward": "measured"}, "objective memory needs a search that simulates"),
        ("energy", {}, "counters"),
        ("latency", {"method": "heft", "reward": "measured"}, "heft. needs the costs"),
    ],
)
def test_what_a_search_cannot_do_is_refused_before_any_work(
    objective: str, given: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT, str(tmp_path))  # where no counter is
    PlaceOptions().check()
    with pytest.raises(HsdagError, match=message):
        PlaceOptions(objective=find_objective(objective), **given).check()


def test_arguments_become_the_words_of_a_command_that_asks_for_the_same() -> None:
    defaults = {"devices": None, "shape": None, "fresh": False, "pins": (), "settings": None, "seed": 0, "start": None}
    given = {"devices": ("A", "B"), "shape": {"x": (1, 3)}, "fresh": True, "pins": ["a=B", "b=C"], "settings": {"k": 1}}
    words = "--devices A,B --shape x[1,3] --fresh --pin a=B --pin b=C --set k=1 --seed 7 --memory A=1GB,B=2"
    defaults["memory"], memory = None, {"A": "1GB", "B": 2}
    assert command_words({**given, "seed": 7, "start": None, "memory": memory}, defaults) == tuple(words.split())
    assert command_words({"pins": [], "seed": 0, "shape": "x[1,3]"}, defaults) == ("--shape", "x[1,3]")
    assert command_words({"start": object()}, defaults) is None
