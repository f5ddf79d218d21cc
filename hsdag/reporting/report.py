"""``hsdag report``: a run folder as one HTML page. Legend: N ops."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hsdag.explaining.explaining import explain_run
from hsdag.explaining.explanation import Explanation
from hsdag.ir.errors import FileFormatError, HsdagError
from hsdag.ir.files import write_atomically
from hsdag.ir.placement.placement import Record
from hsdag.placing.kept_run import KeptRun
from hsdag.reporting.advice import advice_of, device_option, limit_options
from hsdag.reporting.explorer import how_to_open, write_explorer
from hsdag.reporting.html import check_report, report_html
from hsdag.reporting.html.content import PlacedGraph, ReportContent
from hsdag.reporting.simulated_trace import simulated_timeline, submodels_of
from hsdag.runtime.timeline.timeline import Timeline

UNFINISHED = "The search has not come to its end: this is what it kept."


class ReportResult(Record):
    """The files of a report, the page in front, the sentence that it begins with, and ``notes`` on other files."""

    files: tuple[Path, ...]
    sentence: str
    notes: tuple[str, ...] = ()


def report(
    run: str | Path,
    output: str | Path | None = None,
    *,
    explorer: str | Path | None = None,
) -> ReportResult:
    """Write a search as one HTML file; what ``hsdag report`` does.

    ``run`` is a run folder, also of a search that has not ended, or the placement file that it lies beside. The page
    needs the extra ``report``. To the folder ``explorer`` go files for Model Explorer. Without both, the page is named
    after the run.
    Raises SearchError and FileFormatError where there is no such run, OptionError where an extra is missing,
    OutputError where a file cannot be written.
    """
    kept = KeptRun.beside(run)
    files = []
    if output is None and explorer is None:
        output = kept.path.with_suffix(".html")
    if output is not None:
        check_report()
    content = content_of(kept)
    if output is not None:
        files.append(Path(output))
        write_atomically(Path(output), report_html(content).encode())
    if explorer is None or content.placed is None:
        return ReportResult(files=tuple(files), sentence=content.sentence)
    opened = write_explorer(content.placed, None if kept.profile is None else kept.profile.links, Path(explorer))
    return ReportResult(files=(*files, *opened), sentence=content.sentence, notes=(how_to_open(opened),))


def content_of(run: KeptRun) -> ReportContent:
    """What a report of a run shows. Raises FileFormatError where its files do not fit together."""
    result = run.result
    return ReportContent(
        name=run.record.model.name,
        sentence=_unfinished(run) if result is None else result.sentence,
        objective=run.problem.objective,
        subtitle=_subtitle(run),
        advice=advice_of(run),
        placed=_placed(run),
        result=result,
        events=run.events,
        timelines=_timelines(run),
        explanation=_explanation(run),
        environment=_environment(run),
    )


def _placed(run: KeptRun) -> PlacedGraph:
    """The graph with the answer, or what has the shortest measured time while there is none."""
    devices, placement = run.problem.devices, run.placement
    device = np.full(run.graph.num_ops, -1, dtype=np.int64)
    group, kind = run.problem.units.partition.labels, "placement unit"
    if placement is not None:
        names = placement.devices_of(run.graph)
        devices = (*devices, *sorted(set(names) - set(devices)))
        device = np.array([devices.index(name) for name in names], dtype=np.int64)
        group, kind = submodels_of(run, placement)
    time_s = np.full((run.graph.num_ops, len(devices)), np.nan)
    if run.profile is not None:
        for d, times in enumerate(run.profile.times):
            time_s[:, d] = times.time_s
    return PlacedGraph(run.graph, devices, device, group, kind, time_s)


def _timelines(run: KeptRun) -> tuple[Timeline, ...]:
    found = []
    if run.placement is not None:
        found.append(simulated_timeline(run, run.placement))
    if run.result is not None and run.result.timeline is not None:
        try:
            found.append(run.result.timeline.timeline())
        except ValueError as error:
            raise FileFormatError(f"{run.path}: the timeline of the result is damaged: {error}") from error
    return tuple(timeline for timeline in found if timeline is not None)


def _explanation(run: KeptRun) -> Explanation | None:
    """Why the answer is as it is; None where there is none, or it cannot be told."""
    if run.placement is None:
        return None
    try:
        return explain_run(run)
    except HsdagError:
        return None


def _unfinished(run: KeptRun) -> str:
    done = [event.score.value for event in run.events if event.score.failure is None]
    if not done:
        return f"{UNFINISHED} Nothing has been measured yet."
    placements = "1 placement was" if len(done) == 1 else f"{len(done)} placements were"
    best = run.problem.objective.text(min(done))
    return f"{UNFINISHED} {placements} measured, the best at {best}; none is proven to be faster yet."


def _subtitle(run: KeptRun) -> str:
    record = run.record
    day = [] if run.result is None else [run.result.finished[:10]]
    return " · ".join([record.objective, f"{record.executor} executor", ", ".join(run.problem.devices), *day])


def _environment(run: KeptRun) -> dict[str, str]:
    """Versions and hardware, the settings of the search, and the date."""
    record, result = run.record, run.result
    known = dict(result.environment) if result is not None else {}
    devices = {f"{device.name} is": device_option(device).removeprefix(f"{device.name}=") for device in record.devices}
    changes = ", ".join(f"{name}={value}" for name, value in record.changes.items())
    settings = {
        "method": f"{record.method}, preset {record.preset}{', ' + changes if changes else ''}",
        "objective": record.objective,
        "executor": record.executor,
        "reward": record.reward,
        "seed": str(record.seed),
        "model": f"{record.model.name}, {run.graph.num_ops} ops, inputs {record.model.inputs_text}",
        "placement units": str(record.num_units),
        "run folder": str(run.path),
    }
    for option, value in limit_options(record):
        name = option.removeprefix("--").replace("-", " ")
        settings[name] = f"{settings[name]}, {value}" if name in settings else value
    if result is not None:
        settings |= {"budget": f"{result.budget_s:g} s", "finished": result.finished}
    return {**settings, **devices, **known}
