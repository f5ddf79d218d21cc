"""Options: what help shows, by group, and what --set and files give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from hsdag.base.errors import OptionError
from hsdag.cli.app import app
from hsdag.cli.options import GROUPS
from hsdag.commands.place.run_folder import OPTIONS, RunFolder
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from tests.hsdag.commands.place.test_run_folder import RECORD

TOP: Any = typer.main.get_command(app)
COMMANDS = {**TOP.commands, **{f"models {name}": each for name, each in TOP.commands["models"].commands.items()}}


def shown(name: str) -> list[str]:
    """The options that the help of a command shows."""
    named = [each.name for each in COMMANDS[name].params if each.param_type_name == "option"]
    groups = GROUPS.get(name)
    return named if groups is None else [option for group in groups.values() for option in group]


def parsed(*words: str) -> dict[str, Any]:
    with COMMANDS["place"].make_context("place", ["model.xml", *words]) as context:
        found: dict[str, Any] = context.params
    return found


def test_help_shows_each_group_and_no_option_twice() -> None:
    for name, groups in GROUPS.items():
        known = {each.name for each in COMMANDS[name].params}
        assert set(shown(name)) <= known
        assert len(shown(name)) == len(set(shown(name)))
        command = COMMANDS[name]
        text = command.get_help(command.make_context(name, [], resilient_parsing=True))
        assert all(f"{title}:" in text for title in groups)
    assert len(shown("place")) == 15
    assert "--executor" not in text


def test_set_gives_any_option_and_leaves_hyper_parameters_to_the_method() -> None:
    found = parsed("--set", "seed=3", "--set", "max_difference=0.5", "--set", "fresh=true", "--set", "chains=2")
    assert (found["seed"], found["max_difference"], found["fresh"], found["settings"]) == (3, 0.5, True, ["chains=2"])
    assert parsed("--set", "fresh=false")["fresh"] is False
    with pytest.raises(Exception, match="should be a valid integer"):
        parsed("--set", "seed=many")
    assert parsed("-infer_precision", "f32")["infer_precision"] == "f32"


def test_a_wrong_name_lists_hyper_parameters_and_options(complains: Callable[..., str], tmp_path: Path) -> None:
    write_problem(ScheduleProblem.from_arrays([[1.0, 2.0]], [], output_bytes=1.0), tmp_path / "p.json")
    said = complains("solve", str(tmp_path / "p.json"), "--set", "foo=3")
    assert "choose one of without, initial; or one of the options budget, " in said


def test_a_run_writes_its_options_and_takes_them_again(tmp_path: Path) -> None:
    words = ("--pin", r"a b\.c=CPU", "--seed", "7", "--fresh", "--set", "chains=2")
    folder = RunFolder.create(tmp_path / "run", RECORD.model_copy(update={"arguments": words}))
    found = parsed(f"@{folder.path / OPTIONS}", "--seed", "8")
    assert (found["pins"], found["seed"], found["fresh"], found["settings"]) == ([r"a b\.c=CPU"], 8, True, ["chains=2"])
    (tmp_path / "own").write_text("--pin a\\.b=CPU  # a comment\n--seed 7")
    assert parsed(f"@{tmp_path / 'own'}")["pins"] == [r"a\.b=CPU"]


def test_a_file_of_options_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "options").write_text("--pin 'a")
    with pytest.raises(OptionError, match="is no file of options: No closing quotation"):
        parsed(f"@{tmp_path / 'options'}")
