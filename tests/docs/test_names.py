"""The documentation names only modules, files, commands and options that exist."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import typer

from hsdag.cli.app import app
from tests.docs.test_extending import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
MODULE = re.compile(r"(?<!/)\bhsdag(?:\.(?!md\b)[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^from (hsdag[\w.]*) import (?:\((.*?)\)|([^\n]*))", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"\b(?:hsdag|ir|features|models|runtime|benchmarks|tests|docs)/[\w./]+\.(?:py|md|cpp|toml)\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMAND = re.compile(r"\bhsdag (?:--\w+ \S+ )?([a-z]+(?: (?:list|build)(?= ))?)((?: (?!hsdag )[^\n`|]*)?)")


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def text(request: pytest.FixtureRequest) -> str:
    document: str = request.param.read_text(encoding="utf-8")
    for example in EXAMPLES.values():  # what these add exists in their test alone
        document = document.replace(example[0], "")
    return document


@cache
def options() -> dict[str, set[str]]:
    """The options of every command, by its name; those of hsdag itself under the empty one."""
    top = typer.main.get_command(app)
    commands = {"": top, **top.commands}  # type: ignore[attr-defined]
    zoo = commands.pop("models")
    commands |= {f"models {name}": command for name, command in zoo.commands.items()}
    return {name: {flag for p in command.params for flag in p.opts} | {"--help"} for name, command in commands.items()}


def test_modules_and_their_names_exist(text: str) -> None:
    names = set(MODULE.findall(text))
    for module, inside, beside in IMPORT.findall(text):
        names |= {
            f"{module}.{name.split()[0]}" for name in (inside or beside).partition("#")[0].split(",") if name.strip()
        }
    for name in names:
        first, *rest = name.split(".")
        found = import_module(first)
        for part in rest:
            try:
                found = getattr(found, part)
            except AttributeError:
                found = import_module(f"{found.__name__}.{part}")


def test_the_reference_names_classes_and_functions_where_they_are_defined(text: str) -> None:
    for name in re.findall(r"^::: (hsdag[\w.]+\.[A-Z]\w*)$", text, re.MULTILINE):  # the site's tool follows no import
        module, _, cls = name.rpartition(".")
        assert getattr(import_module(module), cls).__module__ == module


def test_files_exist(text: str) -> None:
    assert not [name for name in FILE.findall(text) if "NAME" not in name and not (ROOT / name).exists()]


def test_options_exist(text: str) -> None:
    known = {flag for flags in options().values() for flag in flags}
    benchmarks = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py"))
    of_hsdag = re.sub(r"\b(pip install|ray start)\b[^\n`]*", "", text)
    of_hsdag = re.sub(r"^\| `-[^|]*\|", "", of_hsdag, flags=re.MULTILINE)  # the options of benchmark_app
    assert not [o for o in OPTION.findall(of_hsdag) if o not in known and f'"{o}"' not in benchmarks]


def test_commands_take_the_options_that_are_shown_with_them(text: str) -> None:
    for name, rest in COMMAND.findall(text):
        if name in options():
            assert set(OPTION.findall(rest)) <= options()[name], (name, rest)
