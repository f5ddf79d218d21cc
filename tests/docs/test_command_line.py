"""The page of all commands and options, which is made while the site is built."""

from __future__ import annotations

import runpy

import pytest

from tests.docs.snippets import ROOT
from tests.docs.test_names import options


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """The text under every heading of the page."""
    text: str = runpy.run_path(str(ROOT / "docs" / "reference" / "command_line.py"))["page"]()
    return {part.partition("\n")[0]: part for part in text.split("\n## hsdag")[1:]}


def test_every_command_has_a_section_with_all_its_options(sections: dict[str, str]) -> None:
    for name, flags in options().items():
        section = sections[f" {name}" if name else ""]
        assert all(f"`{flag}`" in section for flag in flags - {"--help"} if flag.startswith("-")), name


def test_an_option_has_its_value_its_words_and_its_default(sections: dict[str, str]) -> None:
    row = next(line for line in sections[" place"].splitlines() if line.startswith("| `--budget`"))
    assert row.startswith("| `--budget` `TEXT` | Search time: 10s, 5m, 1h.")
    assert row.endswith("Default: `60s`. |")


def test_no_cell_of_a_table_is_cut_by_a_bar(sections: dict[str, str]) -> None:
    rows = [line for text in sections.values() for line in text.splitlines() if line.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {3}
