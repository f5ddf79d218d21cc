"""mkdocs hook: the page of all commands and options, made of the command line itself while the site is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import typer
from mkdocs.structure.files import File, Files

from hsdag.cli.app import app

PATH = "reference/command-line.md"
VALUES: dict[type, str] = {str: "TEXT", Path: "FILE", int: "N", float: "X"}
"""What a value of an option is called, by its type."""
INTRODUCTION = """# Command line

Every command takes `--json`, which prints one JSON document on stdout; logs go to stderr. Exit codes: 0 done, 1 a
defect of hsdag, 2 a mistake in the command or its input, explained in one line. Options that `--help` leaves out are
for researchers: `--set NAME=VALUE` gives them as well, `@FILE` takes options from a file.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the page to the site's files."""
    files.append(File.generated(config, PATH, content=page()))
    return files


def page() -> str:
    """Return the page in Markdown."""
    return "\n".join([INTRODUCTION, *_sections("hsdag", typer.main.get_command(app))])


def _sections(name: str, command: Any) -> list[str]:
    """Return the section of a command and its commands, each with a table of its parameters."""
    lines = [f"## {name}", "", command.help or "", "", *_table(command)]
    for child, inner in sorted(getattr(command, "commands", {}).items()):
        lines += _sections(f"{name} {child}", inner)
    return lines


def _table(command: Any) -> list[str]:
    """One row for each parameter."""
    rows = [_row(parameter) for parameter in command.params]
    return ["| parameter | meaning |", "|---|---|", *rows, ""] if rows else []


def _row(parameter: Any) -> str:
    flags = [*parameter.opts, *parameter.secondary_opts]
    is_option = flags[0].startswith("-")
    kind = parameter.type_descriptor.annotation
    (kind,) = get_args(kind) or (kind,)
    value = parameter.metavar or ("" if not is_option or parameter.is_flag else VALUES.get(kind, kind.__name__.upper()))
    name = ", ".join(f"`{flag}`" for flag in flags) if is_option else f"`{parameter.name.upper()}`"
    words = _escaped(getattr(parameter, "help", None) or "")
    default = parameter.default
    shown = is_option and not parameter.is_flag and isinstance(default, (str, int, float)) and default != ""
    if shown and "Default:" not in words:
        words += f" Default: `{default}`."
    if parameter.required:
        words += " Required."
    return f"| {name}{f' `{value}`' if value else ''} | {words} |".replace("  ", " ")


def _escaped(text: str) -> str:
    for sign in ("|", "<", "*"):
        text = text.replace(sign, f"\\{sign}")
    return text
