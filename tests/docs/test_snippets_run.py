"""Every block of the documentation that can be run runs, and prints what its page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.dry import check_command
from tests.docs.scene import adapted, output_of, prepare, run_program
from tests.docs.snippets import PAGES, Snippet, snippets_of

NUMBER = re.compile(r"[\d.,]*\d(?:e[+-]?\d+)?")
HEADS = ("candidate", "device", "method", "op")
"""First words of the heads of tables."""
SHORTENED = "..."
"""A line of output that stands for any number of lines."""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, short_comparisons: None) -> Path:
    """The files that pages read."""
    folder = tmp_path_factory.mktemp("stock")
    prepare(folder)
    return folder


@pytest.fixture
def scene(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for one page, in which the test works."""
    for file in stock.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def runs(page: Path) -> bool:
    return any(snippet.kind == "run" for snippet in snippets_of(page))


def words(line: str) -> str:
    """A line of output without its figures."""
    return " ".join(NUMBER.sub("0", line).split())


def checked_output(printed: str, claimed: list[str], snippet: Snippet) -> None:
    """Each line that a page shows is printed, in whatever order, but for figures.

    Where the comment of a block says that the answer differs, the first line of an output and the heads of tables are.
    """
    lines = {words(line) for line in printed.splitlines()}
    shown = [line for line in claimed if line.strip() not in ("", SHORTENED)]
    if snippet.reason:
        shown = [line for line in shown if line is shown[0] or line.split()[0] in HEADS]
    missing = [line for line in shown if words(line) not in lines]
    assert not missing, f"{snippet.where} shows what is not printed: {missing}; printed was\n{printed}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if runs(p)], ids=lambda page: page.name)
def test_what_can_be_run_runs_and_prints_what_is_shown(page: Path, scene: Path) -> None:
    left: dict[str, Any] = {"__name__": "__main__"}  # by the Python blocks so far, for later ones
    for snippet in snippets_of(page):
        if snippet.kind != "run":
            continue
        if snippet.language == "python":
            run_program(adapted(snippet.text), left)
        for command, claimed in snippet.commands():
            check_command(command)
            checked_output(output_of(adapted(command)), claimed, snippet)
