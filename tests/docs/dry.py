"""Checking commands without running them: files, targets and options exist, and typer reads the arguments."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer

from hsdag.cli.app import app
from tests.docs.snippets import ROOT


def check_command(command: str) -> None:
    """Raise unless every program, file and option of a command line is one that exists."""
    name, *arguments = shlex.split(command, comments=True)
    files = [folder / each for folder in (ROOT, Path()) for each in arguments[:1]]
    if Path(name).name == "hsdag":
        _check_hsdag(arguments)
    elif name == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(arguments) <= targets, f"no such target of make: {command}"
    elif name == "pip":
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extra in re.findall(r"hsdag\[([\w,]+)\]", command):
            assert all(re.search(rf"^{each} = \[", project, re.MULTILINE) for each in extra.split(",")), extra
    elif name.endswith("python") and arguments[0].endswith(".py"):
        assert any(file.exists() for file in files), f"no such program: {command}"
    elif (ROOT / name).is_file():
        check_command(shlex.join(arguments))
    else:
        assert name in (".", "cat"), f"{command}: nothing checks {name!r}; say <!-- show: REASON --> before the block"


def _check_hsdag(arguments: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    context = command.make_context("hsdag", list(arguments))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)
