"""The section on benchmark_app: the options that it says to be the same are taken by both tools."""

from __future__ import annotations

import re
from pathlib import Path

import openvino
import typer

from hsdag.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measuring.md"


def test_options_that_are_called_the_same_are_taken_by_both() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Coming from benchmark_app")[2]
    named = set(re.findall(r"`(-\w+)`", section[: section.index("```")]))
    assert len(named) > 10
    command = typer.main.get_command(app)
    own = {name for parameter in command.commands["bench"].params for name in parameter.opts}  # type: ignore[attr-defined]
    assert named <= own
    theirs = (Path(openvino.__file__).parent / "tools" / "benchmark" / "parameters.py").read_text(encoding="utf-8")
    assert not [name for name in named if f"'{name}'" not in theirs]
