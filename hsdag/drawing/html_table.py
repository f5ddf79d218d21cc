"""Tables in HTML, for reports and notebooks, where whatever is in a cell stays text; and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    """A table, its figures aligned to the right; the row of index ``chosen`` is marked."""
    is_figure = [i > 0 and any(row[i].lstrip("+-")[:1].isdigit() for row in rows) for i in range(len(columns))]
    head = "".join(_cell("th", column, figure) for column, figure in zip(columns, is_figure, strict=True))
    body = []
    for number, row in enumerate(rows):
        mark = ' class="chosen"' if number == chosen else ""
        cells = "".join(_cell("td", cell, figure) for cell, figure in zip(row, is_figure, strict=True))
        body.append(f"<tr{mark}>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{"".join(body)}</tbody></table></div>'


def html_summary(
    sentence: str, columns: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None
) -> str:
    """A sentence above a table, as notebooks show a result."""
    lines = [f"<p>{escape(sentence)}</p>"] if sentence else []
    return "\n".join([*lines, *([html_table(columns, rows, chosen)] if rows else [])])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is aligned to the left, the others to the right where they hold figures."""
    is_figure = [i > 0 and any(row[i][:1].isdigit() for row in rows) for i in range(len(columns))]
    lines = [columns, ["---:" if figure else "---" for figure in is_figure], *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _cell(tag: str, text: str, is_figure: bool) -> str:
    kind = ' class="figure"' if is_figure else ""
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{scope}{kind}>{escape(text)}</{tag}>"
