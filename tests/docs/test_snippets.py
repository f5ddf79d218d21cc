"""Every block of the documentation is run or checked; none is left out without a reason."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.dry import check_command, check_program
from tests.docs.snippets import DATA, PAGES, ROOT, snippets_of

READERS = {"json": json.loads, "toml": tomllib.loads}


def names(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_what_is_not_run_is_checked(page: Path) -> None:
    for snippet in snippets_of(page):
        if snippet.kind == "parse" and snippet.language == "python":
            check_program(snippet.text)
        elif snippet.kind == "parse":
            for command, _ in snippet.commands():
                check_command(command)
        elif snippet.kind == "data":
            READERS[snippet.language](snippet.text)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_no_command_hides_in_text(page: Path) -> None:
    for snippet in snippets_of(page):
        if snippet.kind == "text":
            assert not re.search(r"^(?:\$|hsdag|make|pip|python) (?!\d)[\w-]", snippet.text, re.MULTILINE), (
                snippet.where
            )
    assert not re.search(r"^    (?:\$ )?(?:hsdag|make|pip|python) [\w-]", page.read_text(), re.MULTILINE)


def test_every_page_is_in_the_navigation() -> None:
    made = {"reference/command-line.md", "licences.md"}  # with the site
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - made == set(re.findall(r"[\w/-]+\.md", navigation)) - made, (
        "mkdocs.yml has the navigation of the site"
    )


def test_most_of_what_can_run_runs() -> None:
    """The rest gives its reason, which ``snippets_of`` asks for."""
    count = Counter(s.kind for page in PAGES for s in snippets_of(page) if s.language not in (*DATA, "text"))
    assert count["run"] >= count["parse"] + count["show"]
