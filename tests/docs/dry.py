"""Checking commands and programs without running them: files, options and names exist, values can be read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from hsdag.cli.app import app
from hsdag.exports import export_formats
from hsdag.ir.device import parse_devices
from hsdag.ir.graph.reader import parse_shapes
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.methods import method_names
from hsdag.runtime.objectives import find_objective
from hsdag.search.options import parse_duration, parse_executor, parse_memory
from tests.docs.snippets import ROOT


def check_command(command: str) -> None:
    """Raise unless every program, file, option and value of a command line is one that exists."""
    name, *arguments = shlex.split(command, comments=True)
    if Path(name).name == "hsdag":
        _check_hsdag(arguments)
    elif name == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(arguments) <= targets, f"no such target of make: {command}"
    elif name == "pip":
        _check_pip(arguments)
    elif name.endswith("python") and arguments[0].endswith(".py"):
        path = next((folder / arguments[0] for folder in (ROOT, Path()) if (folder / arguments[0]).exists()), None)
        assert path is not None, f"no such program: {command}"
        program = path.read_text(encoding="utf-8")
        unknown = [a for a in arguments[1:] if a.startswith("--") and not re.search(rf"{a}\b", program)]
        assert not unknown, f"{arguments[0]} has no option {unknown}"
    elif name in (".", "cat"):
        assert arguments, command
    elif (ROOT / name).is_file():
        check_command(shlex.join(arguments))
    else:
        raise AssertionError(f"{command}: nothing here checks {name!r}; say <!-- show: REASON --> before the block")


def _check_hsdag(arguments: list[str]) -> None:
    """Typer reads the arguments; the values that it takes as texts are read by their own readers."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("hsdag", list(arguments))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)
    values: Mapping[str, Any] = context.params
    readers: dict[str, Callable[[str], object]] = {
        "budget": parse_duration,
        "candidate_limit": parse_duration,
        "data_shapes": lambda text: parse_scenarios((text,), None),
        "devices": lambda text: parse_devices(text.replace("cuda:", "GPU.").replace("=cpu", "=CPU")),
        "executor": parse_executor,
        "format_": lambda text: export_formats().index(text),
        "memory": parse_memory,
        "method": lambda text: method_names().index(text),
        "methods": lambda text: [method_names().index(name) for name in text.split(",")],
        "objective": find_objective,
        "shape": parse_shapes,
        "tokens": lambda text: parse_scenarios((), text),
    }
    for name, value in values.items():
        for text in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(text, str) and name in readers:
                readers[name](text)


def _check_pip(arguments: list[str]) -> None:
    """Extras are those of pyproject.toml, files are there."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r"\w+\[([\w,]+)\]", " ".join(arguments)):
        assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extra.split(",")), extra
    for file in (after for before, after in pairwise(arguments) if before == "-r"):
        assert (ROOT / file).is_file(), file
