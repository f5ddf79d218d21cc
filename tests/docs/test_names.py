"""The documentation names only what exists; the page of the command line, made with the site, has all of it."""

from __future__ import annotations

import re
import runpy
from functools import cache
from importlib import import_module

import pytest
import typer

from hsdag.cli.app import app
from hsdag.methods import PLUG_INS
from tests.docs.snippets import PAGES, ROOT
from tests.docs.test_extending import EXAMPLES

MODULE = re.compile(r"(?<!/)\bhsdag(?:\.(?!md\b)[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^from (hsdag[\w.]*) import (?:\((.*?)\)|([^\n]*))", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"\b(?:hsdag|ir|features|runtime|models|benchmarks|tests|docs)/[\w./-]+\.(?:py|md|cpp|toml)\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMAND = re.compile(r"\bhsdag (?:--\w+ \S+ )?([a-z]+(?: (?:list|build)(?= ))?)((?: (?!hsdag )[^\n`|]*)?)")

GROUPS = {PLUG_INS, "hsdag.objectives", "hsdag.exports", "hsdag.commands"}
"""Groups of entry points, which are named like modules."""


@pytest.fixture(params=PAGES, ids=lambda path: path.name)
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
    names = set(MODULE.findall(text)) - GROUPS
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
    for name in re.findall(r"^::: (hsdag[\w.]+\.[A-Z]\w*)$", text, re.MULTILINE):  # the site's tool follows no import
        module, _, cls = name.rpartition(".")
        assert getattr(import_module(module), cls).__module__ == module


def test_files_and_options_exist(text: str) -> None:
    assert not [name for name in FILE.findall(text) if "NAME" not in name and not (ROOT / name).exists()]
    known = {flag for flags in options().values() for flag in flags}
    benchmarks = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py"))
    of_hsdag = re.sub(r"\b(pip install|ray start|docker run)\b[^\n`]*", "", text)
    of_hsdag = re.sub(r"^\| `-[^|]*\|", "", of_hsdag, flags=re.MULTILINE)  # the options of benchmark_app
    assert not [o for o in OPTION.findall(of_hsdag) if o not in known and not re.search(rf"{o}\b", benchmarks)]
    for name, rest in COMMAND.findall(text):
        if name in options():
            assert set(OPTION.findall(rest)) <= options()[name], (name, rest)


def test_every_fault_has_a_promise_and_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    section = page.split("\n## Faults\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) > 15
    assert all(len(row) == 3 and row[0] and row[1] and re.findall(r"`test_\w+`", row[2]) for row in rows)
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    written = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}
    assert set(re.findall(r"`(test_\w+)`", page)) <= written


def test_every_command_has_a_section_with_all_its_options_their_values_words_and_defaults() -> None:
    text: str = runpy.run_path(str(ROOT / "docs" / "reference" / "command_line.py"))["page"]()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## hsdag")[1:]}
    for name, flags in options().items():
        section = sections[f" {name}" if name else ""]
        assert all(f"`{flag}`" in section for flag in flags - {"--help"} if flag.startswith("-")), name
    row = next(line for line in sections[" place"].splitlines() if line.startswith("| `--budget`"))
    assert row.startswith("| `--budget` `TEXT` | Time limit of the whole search: 10s, 5m, 1h.")
    assert row.endswith("Default: `60s`. |")
    rows = [line for text in sections.values() for line in text.splitlines() if line.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {3}
