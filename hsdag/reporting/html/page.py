"""The page of a report: one HTML file with all that it needs, which opens from disk without a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsdag.drawing.picture import is_installed
from hsdag.ir.errors import OptionError
from hsdag.reporting.html.content import ReportContent
from hsdag.reporting.html.sections import sections_of
from hsdag.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bokeh.document import Document
    from bokeh.models import UIElement

    from hsdag.placing.result import Row

HERE = Path(__file__).parent

SHADOW_CSS = """
:host { --color: var(--ink); --background-color: var(--paper); --border-color: var(--rule); --hover-color: var(--hover);
  --divider-color: var(--rule); --surface-background-color: var(--panel); --placeholder-color: var(--soft);
  --inverted-color: var(--paper); --odd: var(--row); --special: var(--panel); --selected: var(--chosen);
  --inactive-bg: var(--panel); color: var(--ink); }
.bk-input, .bk-btn { background-color: var(--paper); color: var(--ink); }
select:not([multiple]).bk-input { appearance: auto; background-image: none; padding-right: 6px; }
:host(.controls) { flex-wrap: wrap; }
.slick-header-column, .slick-header-columns { background: var(--panel); color: var(--ink); }
.slick-row { background: var(--paper); color: var(--ink); }
"""
"""How widgets take the page's colours: its own rules do not reach into them."""


@dataclass(frozen=True)
class Fact:
    """A figure of the first screen."""

    label: str
    value: str
    note: str


def check_report() -> None:
    """Raise OptionError where a report cannot be drawn here, before any work is done for it."""
    missing = [module for module in ("bokeh", "igraph") if not is_installed(module)]
    if missing:
        raise OptionError(f"reports need {missing[0]}, which is not installed; run: pip install 'hsdag[report]'")


def report_html(content: ReportContent) -> str:
    """The page. Raises OptionError as ``check_report`` does."""
    check_report()
    from bokeh.core.templates import MACROS
    from bokeh.embed import file_html
    from bokeh.resources import Resources
    from jinja2 import Environment, FileSystemLoader

    sections = sections_of(content)
    template = Environment(loader=FileSystemLoader(HERE), autoescape=True).get_template("page.html.jinja")
    title = f"{content.name}, placed by hsdag"
    known: dict[str, Any] = {
        "name": content.name,
        "subtitle": content.subtitle,
        "sentence": content.sentence,
        "facts": facts_of(content),
        "advice": content.advice,
        "sections": sections,
        "css": (HERE / "page.css").read_text(),
        "script": (HERE / "page.js").read_text(),
        "footer": f"Written by hsdag {__version__}. Figures are measured unless they are called simulated.",
    }
    roots = [figure for section in sections for figure in section.figures]
    if not roots:
        return template.render(known | {"title": title, "macros": MACROS, "roots": ()})
    page: str = file_html(
        _document(roots), Resources(mode="inline"), title, template=template, template_variables=known
    )
    return page


def _document(roots: Sequence[UIElement]) -> Document:
    """The figures, which take the page's colours."""
    from bokeh.document import Document
    from bokeh.models import ColorBar, CustomJS, InlineStyleSheet, Legend, Plot, Title, UIElement

    made = Document()
    for root in roots:
        made.add_root(root)
    sheet = InlineStyleSheet(css=SHADOW_CSS)
    for element in made.select({"type": UIElement}):
        element.stylesheets = [*element.stylesheets, sheet]
    kinds = {"figures": Plot, "legends": Legend, "titles": Title, "bars": ColorBar}
    painted = {name: list(made.select({"type": kind})) for name, kind in kinds.items()}
    made.js_on_event("document_ready", CustomJS(args=painted, code=(HERE / "paint.js").read_text()))
    return made


def facts_of(content: ReportContent) -> list[Fact]:
    """What was gained, what it takes now, where the ops are, and what was tried."""
    facts = []
    if content.result is not None:
        answer = content.result.answer
        facts += [_gain(content, answer), Fact(*_figures_of(content, answer))]
        placed = {device: count for device, count in answer.ops.items() if count}
        shares = [f"{count} on {device}" for device, count in placed.items()]
        if placed:
            facts.append(Fact("Ops", " + ".join(map(str, placed.values())), ", ".join(shares)))
    tally = content.tally
    if tally.tried or tally.simulated:
        simulated = [f"{tally.simulated:,} simulated"] if tally.simulated else []
        notes = [*([f"{tally.num_failed} failed"] if tally.num_failed else []), *simulated]
        facts.append(Fact("Placements measured", f"{tally.tried - tally.num_failed:,}", ", ".join(notes)))
    return facts


def _gain(content: ReportContent, answer: Row) -> Fact:
    versus, ends = content.versus, content.interval_of(answer)
    if versus is None:
        return Fact("Gain", "runs at all", "no device holds the whole model")
    if answer.name == versus:
        return Fact("Gain", "none", f"nothing that was tried beats {versus} for sure")
    interval = "too few rounds for an interval"
    if ends is not None:
        interval = f"95% interval {ends[0]:.3f} to {ends[1]:.3f}"
    return Fact("Speed-up", f"{answer.ratio:.3f}×", f"over {versus}; {interval}")


def _figures_of(content: ReportContent, answer: Row) -> tuple[str, str, str]:
    objective = content.objective
    single = next((each for each in content.rows if each.name == content.versus), None)
    note = f"p95 {objective.text(answer.p95)}, {answer.runs} runs"
    if single is not None and single is not answer:
        note = f"{single.name}: {objective.text(single.median)}"
    return objective.name.capitalize() + ", median", objective.text(answer.median), note
