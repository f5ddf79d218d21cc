"""The fenced blocks of the documentation, and what is to be done with each.

A block in one of RUN is run, in a folder of its page, and prints what it shows, but for figures. A comment before it
says otherwise, and why::

    <!-- run: the answer differs -->       only the first line of what a command prints and heads of tables are compared
    <!-- parse: it needs two GPUs -->     options, values and names are checked, nothing is run
    <!-- show: an excerpt of the table -->  nothing is checked

Blocks in one of DATA are read by the format's own reader; ``text`` is what a command prints or a grammar, and holds no
command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
RUN = ("console", "bash", "python")
"""console: commands after ``$``, with their output; bash: commands alone; python: a program, continued by the next."""
DATA = ("json", "toml")
LANGUAGES = (*RUN, *DATA, "text")

Kind = Literal["run", "parse", "show", "data", "text"]
FENCE = re.compile(
    r"(?:^<!-- (?P<word>\w+)(?:: *(?P<reason>[^\n]*?))? *-->\n+)?"
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
HOW = (
    f"a block begins with ``` and one of {', '.join(LANGUAGES)}; the comment before one that is not to run is "
    "<!-- parse: REASON --> or <!-- show: REASON --> (tests/docs/snippets.py)"
)


@dataclass(frozen=True)
class Snippet:
    """A fenced block; ``line`` is where it begins in its page."""

    page: Path
    line: int
    language: str
    text: str
    kind: Kind
    reason: str = ""

    @property
    def where(self) -> str:
        """The place as editors take it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[tuple[str, list[str]]]:
        """Every command with the output that is shown after it; ``bash`` shows none. A backslash continues a line."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            if self.language == "bash" and line.strip() and not line.startswith("#"):
                found.append((line, []))
            elif line.startswith("$ "):
                found.append((line[2:], []))
            elif self.language == "console":
                found[-1][1].append(line)
        return found


def snippets_of(page: Path) -> list[Snippet]:
    """The blocks of a page in order. Raises ValueError for one that does not say what it is."""
    content, found = page.read_text(encoding="utf-8"), []
    for match in FENCE.finditer(content):
        line = content.count("\n", 0, match.start("indent")) + 1
        language, word, reason = match["language"], match["word"], match["reason"] or ""
        where = f"{page.relative_to(ROOT)}:{line}"
        if language not in LANGUAGES or (word is not None and (word not in ("run", "parse", "show") or not reason)):
            raise ValueError(f"{where}: {HOW}")
        kind: Kind = "run" if language in RUN else "text" if language == "text" else "data"
        if word in ("parse", "show"):
            kind = word  # type: ignore[assignment]
        found.append(Snippet(page, line, language, match["text"], kind, reason))
    if 2 * len(found) != len(re.findall(r"^ *```", content, re.MULTILINE)):
        raise ValueError(f"{page.relative_to(ROOT)}: a block does not end; {HOW}")
    return found
