"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is aligned to the left, the others to the right where they hold figures."""
    is_figure = [i > 0 and any(row[i][:1].isdigit() for row in rows) for i in range(len(columns))]
    lines = [columns, ["---:" if figure else "---" for figure in is_figure], *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
