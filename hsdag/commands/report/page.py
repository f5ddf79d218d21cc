"""Build the page of a report: one self-contained HTML file, which opens from disk without a network.

Sections come in the order in which questions arise; those with nothing to show are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hsdag.base.errors import HsdagError, OptionError, install_extra
from hsdag.base.version import __version__
from hsdag.commands.explain.explain import explain_run
from hsdag.commands.place.records import Tally
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RunFolder
from hsdag.commands.report.figures import progress_figures, timeline_figures
from hsdag.commands.report.graph import LARGE, LAYERS_SHOWN, PlacedGraph, graph_figure, op_source
from hsdag.commands.report.words import environment_of, next_steps_of, sentence_of
from hsdag.drawing import html_table
from hsdag.runtime.objectives import Objective
from hsdag.runtime.timeline import Timeline
from hsdag.search.driver import members_table

if TYPE_CHECKING:
    from bokeh.document import Document
    from bokeh.models import UIElement

HERE = Path(__file__).parent
CSS = (HERE / "page.css").read_text(encoding="utf-8")
"""Style of the page, and, from the first ``:host`` on, of Bokeh's widgets."""

FEWEST, MOST = 4, 80
"""Show layers only if their number is in this range, worth a list and still easy to look through."""

SMALLEST = 400  # a layer has at least one in this many of all ops
OTHERS = "other ops"  # name for ops that are in no layer

MOST_ROWS, MOST_OPS = 8, 40
"""Most rows of the table of gains, and of the profile, largest and longest first."""

GRAPH_LEAD = (
    "Data flow from left to right; small marks are weights and what else is known before any data. Thick lines go from "
    "device to device. Drag to move, hold Ctrl and turn the wheel to zoom, point at an op for its figures. Beside its "
    "colour, each device has its own hatch, and so have ops that several devices compute together."
)
LARGE_LEAD = f" Lines over more than {LAYERS_SHOWN} columns are drawn at both their ends alone."
PROFILE_LEAD = (
    "Measured milliseconds on every device of the ops that take longest. Ops that a device computes as one share one "
    "figure, which stands at the heaviest of them."
)
COMPARISON_LEAD = (
    "Measured in common rounds, each in an order drawn anew; the answer is marked. Above 1, a candidate is faster than "
    "the best device alone; only an interval that excludes 1 says so."
)


class Fact(NamedTuple):
    """A figure at the top of the page."""

    label: str
    value: str
    note: str


@dataclass(frozen=True, eq=False)
class Section:
    """A section of the page: heading, lead sentence, HTML that is already escaped, and figures below it."""

    key: str
    title: str
    lead: str = ""
    html: str = ""
    figures: Sequence[UIElement] = ()


def report_html(run: RunFolder) -> str:
    """Return the page. Raises OptionError if it cannot be drawn here, and FileFormatError as reading a run does."""
    missing = [module for module in ("bokeh", "igraph") if find_spec(module) is None]
    if missing:
        raise OptionError(f"reports need {missing[0]}, which is not installed; {install_extra('report')}")
    from bokeh.core.templates import MACROS
    from bokeh.embed import file_html
    from bokeh.resources import Resources
    from jinja2 import Environment, FileSystemLoader

    sections = sections_of(run)
    template = Environment(loader=FileSystemLoader(HERE), autoescape=True).get_template("page.html.jinja")
    day = [] if run.result is None else [run.result.finished[:10]]
    devices = ", ".join(run.problem.devices)
    variables: dict[str, Any] = {
        "macros": MACROS,
        "name": run.record.model.name,
        "subtitle": " · ".join([run.record.objective, f"{run.record.executor} executor", devices, *day]),
        "answer": [sentence_of(run)] if run.result is None else run.result.summary,
        "facts": facts_of(run),
        "next_steps": next_steps_of(run),
        "sections": sections,
        "css": CSS,
        "footer": f"Written by hsdag {__version__}. Figures are measured unless they are called simulated.",
    }
    document = _document([figure for section in sections for figure in section.figures])
    title = f"{run.record.model.name}, placed by hsdag"
    return str(file_html(document, Resources(mode="inline"), title, template=template, template_variables=variables))


def _document(roots: Sequence[UIElement]) -> Document:
    """Return a Bokeh document of the figures, which take the page's colours."""
    from bokeh.document import Document
    from bokeh.models import CustomJS, InlineStyleSheet, Legend, Plot, Title, UIElement

    made = Document()
    for root in roots:
        made.add_root(root)
    sheet = InlineStyleSheet(css=CSS[CSS.index(":host {") :])
    for element in made.select({"type": UIElement}):
        element.stylesheets = [*element.stylesheets, sheet]
    kinds = {"figures": Plot, "legends": Legend, "titles": Title}
    painted = {name: list(made.select({"type": kind})) for name, kind in kinds.items()}
    made.js_on_event("document_ready", CustomJS(args=painted, code="paint({figures, legends, titles})"))
    return made


def facts_of(run: RunFolder) -> list[Fact]:
    """Return what was gained, the present value, and how much was tried."""
    facts = []
    if run.result is not None:
        facts += [_gain(run.result), _value(run.result, run.problem.objective)]
    tally = _tally(run)
    if tally.tried or tally.simulated:
        simulated = [f"{tally.simulated:,} simulated"] if tally.simulated else []
        notes = [*([f"{tally.num_failed} failed"] if tally.num_failed else []), *simulated]
        facts.append(Fact("Placements measured", f"{tally.tried - tally.num_failed:,}", ", ".join(notes)))
    return facts


def _tally(run: RunFolder) -> Tally:
    return Tally.of(run.events, 0 if run.result is None else run.result.tally.simulated)


def _gain(result: PlaceResult) -> Fact:
    """Return the speed-up over the best single device as a fact."""
    answer, versus = result.answer, result.versus
    if versus is None:
        return Fact("Gain", "runs at all", result.no_single)
    if answer.name == versus:
        return Fact("Gain", "none", f"nothing that was tried beats {versus} for sure")
    low, high = answer.ci95
    is_short = low is None or high is None
    interval = "too few rounds for an interval" if is_short else f"95% interval {low:.3f} to {high:.3f}"
    if answer.ratio < 1.0 and versus in result.turned_down:
        return Fact("Speed", f"{answer.ratio:.3f}×", f"that of {versus}, which is ruled out; {interval}")
    return Fact("Speed-up", f"{answer.ratio:.3f}×", f"over {versus}; {interval}")


def _value(result: PlaceResult, objective: Objective) -> Fact:
    """Return the median of the answer as a fact."""
    answer, versus = result.answer, result.versus
    note = f"p95 {objective.text(answer.p95)}, {answer.runs} runs"
    for row in result.rows:
        if row.name == versus and row is not answer:
            note = f"{row.name}: {objective.text(row.median)}"
    return Fact(objective.name.capitalize() + ", median", objective.text(answer.median), note)


def sections_of(run: RunFolder) -> list[Section]:
    """Return all sections that have something to show."""
    objective, result = run.problem.objective, run.result
    placed = PlacedGraph.of(run)
    sections = []
    if result is not None:
        columns, table = result.table()
        table = [[name.removesuffix(" *"), *rest] for name, *rest in table]
        html = html_table(columns, table, result.rows.index(result.answer))
        sections = [Section("comparison", "Comparison", COMPARISON_LEAD, html)]
    if run.placement is not None:
        with suppress(HsdagError):  # leave the section out if the run cannot be explained
            why = explain_run(run)
            html = (
                f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in why.sentences[len(why.answer) :])}</ul>"
            )
            for title, names, cells in why.tables(MOST_ROWS):
                html += f"<h3>{title.replace('SIMULATED', 'Simulated')}</h3>{html_table(names, cells)}"
            lead = "Why the placement is as it is, and what would change it."
            sections.append(Section("explanation", "Why", lead, html))
    layers = layers_html(placed)
    lead = GRAPH_LEAD + LARGE_LEAD * bool(layers)
    sections.append(Section("graph", "Graph", lead, layers, graph_figure(placed, op_source(placed))))
    if result is not None and result.timeline is not None:
        sections.append(_timeline(run, result.timeline))
    if sum(event.score.failure is None for event in run.events) > 1:  # one measurement makes no progress figure
        lead = "Every placement of whole ops that was measured in the search, when it was, and the best so far."
        sections.append(Section("search", "Search", lead, figures=progress_figures(run.events, objective)))
    if run.events or result is not None:
        sections.append(_tried(run, objective))
    if run.profile is not None:
        sections.append(Section("profile", "Profile", PROFILE_LEAD, _profile(placed)))
    pairs = environment_of(run).items()
    rows = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in pairs)
    html = f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'
    return [*sections, Section("environment", "Environment", html=html)]


def _timeline(run: RunFolder, timeline: Timeline) -> Section:
    lead = "One inference, measured by itself: a row for each device, and below for each link. Colours are op types."
    if scenarios := run.record.data_shapes:
        lead += f" It is of the first of {len(scenarios)} scenarios, {scenarios[0]}."
    return Section("timelines", "Timeline", lead, figures=timeline_figures(timeline))


def layers_by_name(names: Sequence[str]) -> list[str]:
    """Return a layer for each op, [N]: the longest prefix of its name, up to a ``/`` or ``.``, that leaves few layers.

    Each layer has at least one in ``SMALLEST`` of all ops; other ops take the next shorter prefix that is a layer. If
    names give no useful layers, a layer is a run of consecutive ops.
    """
    paths = [[part for part in re.split(r"[/.]", name)[:-1] if part] for name in names]
    sizes = Counter("/".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1))
    for deepest in range(max(map(len, paths), default=0), 0, -1):
        begins = [["/".join(path[:depth]) for depth in range(min(deepest, len(path)), 0, -1)] for path in paths]
        layers = [
            next((layer for layer in prefixes if sizes[layer] * SMALLEST >= len(names)), OTHERS) for prefixes in begins
        ]
        if FEWEST <= len(set(layers)) <= MOST:
            return layers
    size = -(-len(names) // MOST)
    return [f"ops {k // size * size + 1} to {min(k // size * size + size, len(names))}" for k in range(len(names))]


def in_order(middle: Mapping[str, float]) -> list[str]:
    """Sort layers for display: kinds of layers as data flow, and within a kind by number.

    Args:
        middle: Horizontal middle of each layer in the drawing, by name.
    """
    kinds: dict[str, float] = {}
    for layer, x in middle.items():
        kind = re.sub(r"\d+", "#", layer)
        kinds[kind] = min(x, kinds.get(kind, x))

    def place(layer: str) -> tuple[float, list[int], float]:
        """Return the sort key of a layer."""
        return kinds[re.sub(r"\d+", "#", layer)], [int(number) for number in re.findall(r"\d+", layer)], middle[layer]

    return sorted(middle, key=place)


def layers_html(placed: PlacedGraph) -> str:
    """Return an expandable line per layer with its ops and a button that shows them; empty for small graphs."""
    graph, drawing = placed.graph, placed.drawing
    ops = [v for v in graph.topological_order.tolist() if not drawing.is_known[v]]
    if len(ops) <= LARGE:
        return ""
    members: dict[str, list[int]] = {}
    for v, layer in zip(ops, layers_by_name([graph.op_names[v] for v in ops]), strict=True):
        members.setdefault(layer, []).append(v)
    lines = []
    middle = {layer: float(drawing.x[inside].mean()) for layer, inside in members.items()}
    for layer in in_order(middle):
        inside = members[layer]
        device = [placed.name_of(int(placed.device[v])) for v in inside]
        cost_ms = [f"{1e3 * placed.cost_s[v]:.4g}" if placed.cost_s[v] else "-" for v in inside]
        took = f"; {1e3 * float(np.sum(placed.cost_s[inside])):.4g} ms" if placed.cost_s.any() else ""
        where = ", ".join(f"{count} on {name}" for name, count in Counter(device).most_common())
        rows = [[graph.op_names[v], graph.op_types[v], *more] for v, *more in zip(inside, device, cost_ms, strict=True)]
        x, y = drawing.x[inside], drawing.y[inside]
        view = f"[{x.min():g}, {x.max():g}, {y.min():g}, {y.max():g}]"
        button = f'<button type="button" class="theme" data-view="{view}">Show in the graph</button>'
        lines.append(
            f"<details><summary><b>{escape(layer)}</b>: {escape(where)}{took}</summary>"
            f"{button * (layer != OTHERS)}{html_table(['op', 'type', 'device', 'ms'], rows)}</details>"
        )
    return f'<div class="layers">{"".join(lines)}</div>'


def _profile(placed: PlacedGraph) -> str:
    """Return the table of the ops that take longest."""
    graph = placed.graph
    rows = []
    measured = np.flatnonzero(np.isfinite(placed.time_s).any(axis=0))
    longest = np.argsort(-placed.cost_s, kind="stable")[:MOST_OPS]
    for v in longest[placed.cost_s[longest] > 0].tolist():
        times = [
            f"{1e3 * seconds:.4g}" if np.isfinite(seconds) else "-" for seconds in placed.time_s[v, measured].tolist()
        ]
        shape = "×".join(map(str, graph.shape_of(v))) or "scalar"
        rows.append([graph.op_names[v], graph.op_types[v], placed.name_of(int(placed.device[v])), *times, shape])
    return html_table(["op", "type", "device", *(f"{placed.devices[d]}, ms" for d in measured), "shape"], rows)


def _tried(run: RunFolder, objective: Objective) -> Section:
    """Return the section on placements that were tried, failed or were ruled out."""
    tally, result = _tally(run), run.result
    tables = {"Why placements failed": (["reason", "count"], [[why, str(n)] for why, n in tally.failures.items()])}
    if result is not None:
        rejected = [[name, why] for name, why in result.turned_down.items() if name != result.answer.name]
        tables["Ruled out"] = ["candidate", "why"], rejected
        tables["Not compared"] = ["candidate", "why"], [list(item) for item in result.failures.items()]
        tables["Methods, simulated"] = members_table(result.members, objective)
    html = "".join(f"<h3>{title}</h3>{html_table(*table)}" for title, table in tables.items() if table[1])
    return Section("tried", "What was tried", f"{tally.words}.", html)
