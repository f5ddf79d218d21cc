"""The sections of a report, from its content; those that have nothing to show are left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from hsdag.drawing.html_table import html_table
from hsdag.reporting.html.content import ReportContent
from hsdag.reporting.html.figures import comparison_figure, progress_figures
from hsdag.reporting.html.graph import graph_figure, op_source, profile_table
from hsdag.reporting.html.timelines import timeline_figures

if TYPE_CHECKING:
    from bokeh.models import UIElement

    from hsdag.explaining.explanation import Explanation
    from hsdag.placing.result import Row

MOST_ROWS = 8
"""Of gains and boundaries, the largest first."""


@dataclass(frozen=True, eq=False)
class Section:
    """A heading, a sentence, HTML that is escaped already, figures below it, and HTML below these."""

    key: str
    title: str
    lead: str = ""
    html: str = ""
    figures: list[UIElement] = field(default_factory=list)
    after: str = ""


def sections_of(content: ReportContent) -> list[Section]:
    """All sections, in the order in which questions come up."""
    made = [
        _comparison(content),
        _explanation(content),
        *_of_ops(content),
        _timelines(content),
        _progress(content),
        _tried(content),
    ]
    found = [section for section in [*made, _environment(content)] if section is not None]
    order = ["comparison", "explanation", "graph", "timelines", "search", "tried", "profile", "environment"]
    return sorted(found, key=lambda section: order.index(section.key))


def _comparison(content: ReportContent) -> Section | None:
    if content.result is None:
        return None
    unit, failures = content.objective.shown_unit, content.result.failures
    columns = [
        "candidate",
        f"median {unit}",
        f"p95 {unit}",
        "runs",
        "× best device",
        "95% interval",
        "submodels",
        "ops",
    ]
    rows = [_row(content, each) for each in content.rows]
    chosen = next((i for i, each in enumerate(content.rows) if each.is_answer), None)
    html = html_table(columns, rows, chosen)
    after = ""
    if failures:
        after = "<h3>Not compared</h3>" + html_table(["candidate", "why"], list(failures.items()))
    lead = "Measured in common rounds, in an order drawn anew for each; ◆ is the answer. "
    lead += "Above 1, a candidate is faster than the best device alone; only an interval that excludes 1 says so."
    return Section("comparison", "Comparison", lead, html, [comparison_figure(content)], after)


def _row(content: ReportContent, each: Row) -> list[str]:
    ends = content.interval_of(each)
    return [
        each.name,
        content.objective.figure(each.median),
        content.objective.figure(each.p95),
        str(each.runs),
        f"{each.ratio:.3f}",
        "-" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}",
        str(each.submodels),
        ", ".join(f"{device} {count}" for device, count in each.ops.items() if count) or "-",
    ]


def _explanation(content: ReportContent) -> Section | None:
    found = content.explanation
    if found is None:
        return None
    unit, factor = content.objective.shown_unit, content.objective.shown_factor
    html = "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in found.sentences) + "</ul>"
    if found.gains:
        rows = [
            [each.op, each.op_type, each.device, each.other, f"{factor * each.moved:.4g}", f"{factor * each.gain:+.3g}"]
            for each in found.gains[:MOST_ROWS]
        ]
        columns = ["op", "type", "on", "if moved to", f"{unit} then", f"{unit} more"]
        html += "<h3>What units gain from where they are, simulated</h3>" + html_table(columns, rows)
    if found.boundaries:
        html += "<h3>The costliest boundaries, simulated</h3>" + _boundaries(found)
    if found.limits:
        rows = [
            [f"{each.kind} {each.name}".strip(), f"{1e3 * each.seconds:.4g}", f"{100 * each.gain:.1f}%"]
            for each in found.limits
        ]
        columns = ["cost", "ms", "gain at most without it"]
        html += "<h3>What limits further gains, simulated</h3>" + html_table(columns, rows)
    return Section("explanation", "Why", "Why the placement is as it is, and what would change it.", html)


def _boundaries(found: Explanation) -> str:
    rows = [
        [
            each.op,
            f"{', '.join(each.sources)} → {each.device}",
            str(each.launches),
            str(len(each.tensors)),
            f"{each.size_bytes:,}",
            f"{1e3 * each.seconds:.3g}",
        ]
        for each in sorted(found.boundaries, key=lambda boundary: -boundary.seconds)[:MOST_ROWS]
    ]
    return html_table(["first op behind it", "way", "launches", "tensors", "bytes", "ms"], rows)


def _of_ops(content: ReportContent) -> list[Section]:
    """The graph, and the profile, which share their data."""
    placed = content.placed
    if placed is None:
        return []
    source = op_source(placed)
    lead = "Data flow from left to right; small marks are weights and what else is known before any data. "
    lead += "Thick lines go from device to device. Drag to move, hold Ctrl and turn the wheel to zoom, point at an op "
    lead += "for its figures. Beside its colour, each device has its own hatch."
    graph = Section("graph", "Graph", lead, figures=graph_figure(placed, source))
    if not placed.is_profiled:
        return [graph]
    lead = "Measured milliseconds of each op on every device. Ops that a device computes as one share one figure, "
    lead += "which stands at the heaviest of them. Click on a heading to sort, on a row to see the op in the graph."
    return [graph, Section("profile", "Profile", lead, figures=profile_table(placed, source))]


def _timelines(content: ReportContent) -> Section | None:
    if not content.timelines:
        return None
    lead = "One inference, on one time axis: a row for each device, and below for each link. Colours are types of ops."
    return Section("timelines", "Timelines", lead, figures=timeline_figures(content.timelines))


def _progress(content: ReportContent) -> Section | None:
    figures = progress_figures(content.events, content.members, content.objective)
    if not figures:
        return None
    lead = "Every placement that was measured, when it was, and the best so far"
    lead += ", and what each method of the portfolio did meanwhile." if content.members else "."
    return Section("search", "Search", lead, figures=figures)


def _tried(content: ReportContent) -> Section | None:
    tally, result = content.tally, content.result
    if not content.events and result is None:
        return None
    counts = [
        ["measured", f"{tally.tried - tally.num_failed:,}"],
        ["failed", f"{tally.num_failed:,}"],
        *([["simulated", f"{tally.simulated:,}"]] if tally.simulated else []),
    ]
    html = html_table(["placements", "count"], counts)
    if tally.failures:
        reasons = [[reason, str(count)] for reason, count in tally.failures.items()]
        html += "<h3>Why placements failed</h3>" + html_table(["reason", "count"], reasons)
    if result is not None:
        rejected = [[name, why] for name, why in result.turned_down.items() if name != result.answer.name]
        html += "<h3>Faster, but not the answer</h3>"
        none = "<p>No candidate was faster and rejected.</p>"
        html += html_table(["candidate", "why"], rejected) if rejected else none
    if content.members:
        html += "<h3>Methods</h3>" + _methods(content)
    return Section("tried", "What was tried", "" if result is None else _why(content, result.answer), html)


def _why(content: ReportContent, chosen: Row) -> str:
    """Why the answer won, in a sentence."""
    versus, ends = content.versus, content.interval_of(chosen)
    if chosen.name == versus:
        return f"{versus} is the answer: nothing else is faster than it with certainty and computes the same."
    if versus is None or ends is None:
        return f"{chosen.name} is the answer: it was the fastest that computes what the model computes."
    return (
        f"{chosen.name} is the answer: the whole of its 95% interval, {ends[0]:.3f} to {ends[1]:.3f}, is faster than "
        f"{versus}, and its outputs are what the model computes."
    )


def _methods(content: ReportContent) -> str:
    rows = []
    for method in dict.fromkeys(turn.method for turn in content.members):
        own = [turn for turn in content.members if turn.method == method]
        gains = [turn.after for turn in own if turn.has_gained and turn.after is not None]
        best = content.objective.figure(gains[-1]) if gains else "-"
        seconds = f"{sum(turn.ended_s - turn.began_s for turn in own):.1f}"
        why = next((turn.failure for turn in own if turn.failure), "")
        rows.append([method, str(len(own)), seconds, str(len(gains)), best, why])
    unit = content.objective.shown_unit
    return html_table(["method", "turns", "seconds", "gains", f"best {unit}, simulated", "ended because"], rows)


def _environment(content: ReportContent) -> Section | None:
    if not content.environment:
        return None
    pairs = content.environment.items()
    rows = "".join(f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in pairs)
    return Section("environment", "Environment", "", f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>')
