"""Every row of the table of faults names its test, and every test that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def rows_of_faults() -> list[str]:
    """The rows of the table below the heading, without its head."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Faults\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def test_every_fault_has_a_promise_and_a_test() -> None:
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows_of_faults()]
    assert len(rows) > 20
    assert all(len(row) == 3 and row[0] and row[1] and re.findall(r"`test_\w+`", row[2]) for row in rows)


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    written = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}
    assert named - written == set()
