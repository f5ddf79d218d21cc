"""Performance counters of candidates, and benchmark_app's report files of what was measured."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.ir.errors import OptionError, OutputError, SearchError
from hsdag.ir.placement import write_atomically
from hsdag.ir.processes import CandidateFailed
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import Counter, Counters

if TYPE_CHECKING:
    from hsdag.commands.bench import BenchResult, BenchRow
    from hsdag.search.session import Session

REPORTS = ("no_counters", "average_counters", "detailed_counters")
"""What ``--report-type`` takes, by benchmark_app's names."""

COUNTED_RUNS = 10
"""Inferences whose counters are read."""


def read_counters(
    session: Session, candidates: Mapping[str, Candidate], names: Sequence[str] | Mapping[str, object], runs: int
) -> dict[str, list[list[Counter]]]:
    """The counters of each of ``runs`` inferences of the candidates named, compiled once more with counters.

    Raises OptionError for a placement of the work-conserving executor, whose parts have none, SearchError where a
    candidate does not run with counters.
    """
    found = {}
    for name in names:
        candidate = candidates[name]
        if candidate.executor == "work-conserving":
            raise OptionError(f"{name} is run by the work-conserving executor, which has no counters; --trace shows it")
        properties = {key: value for key, value in candidate.properties.items() if value is not None}
        request = Counters(candidate.target, candidate.devices, properties, runs)
        limits = session.runner.limits
        try:
            found[name] = session.client.call(request, limits.compile_s + limits.run_s)
        except CandidateFailed as failure:
            raise SearchError(f"{name} does not run with performance counters: {failure.reason}") from failure
    return found


def check_report(kind: str | None, folder: Path | None, *, json_stats: bool) -> None:
    """Raise OptionError for an unknown kind of report, and for a folder or a format of none; OutputError for a file."""
    if kind is not None and kind not in REPORTS:
        raise OptionError(f"unknown --report-type {kind!r}; choose one of {', '.join(REPORTS)}")
    if kind is None and (folder is not None or json_stats):
        raise OptionError("--report-folder and --json-stats are for a report: add --report-type no_counters")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; name a folder for reports")


def write_reports(
    result: BenchResult, settings: Mapping[str, object], kind: str, folder: Path, *, as_json: bool
) -> list[Path]:
    """Write benchmark_app's files into ``folder``; of several candidates each has a folder of its own there.

    ``settings`` are the options that were given. Raises OutputError where a file cannot be written.
    """
    written = []
    for row in result.rows:
        own = folder if len(result.rows) == 1 else folder / re.sub(r"[^\w.,=-]+", "_", row.name)
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{own} cannot be made a folder for reports: {error.strerror}") from error
        suffix = "json" if as_json else "csv"
        text = _json_report(row, settings) if as_json else _csv_report(row, settings)
        files = {own / f"benchmark_report.{suffix}": text}
        if row.name in result.counters:
            runs = result.counters[row.name]
            shown = [_average(runs)] if kind == "average_counters" else runs
            counted = _json_counters(shown, kind) if as_json else "".join(_csv_counters(each) for each in shown)
            files[own / f"benchmark_{kind}_report.{suffix}"] = counted
        for path, content in files.items():
            write_atomically(path, content.encode())
            written.append(path)
    return written


def _results(row: BenchRow) -> dict[str, str]:
    """What benchmark_app reports, by its names; latency is that of single requests, throughput that of several."""
    latency = row.latency
    seconds = {
        "compile model time (ms)": row.opened.compile_s,
        "first inference time (ms)": row.opened.first_s,
        "latency (ms)": latency.median_s,
        "avg latency": latency.mean_s,
        "min latency": row.min_s,
        "max latency": row.max_s,
    }
    found = {"total number of iterations": str(latency.runs)}
    found |= {name: f"{1e3 * value:.4f}" for name, value in seconds.items()}
    return found | ({"throughput": f"{row.inferences_per_s:.4f}"} if row.inferences_per_s is not None else {})


def _setup(row: BenchRow) -> dict[str, str]:
    return {"target device": row.name, "API": "sync for latency, async for throughput"}


def _csv_report(row: BenchRow, settings: Mapping[str, object]) -> str:
    sections = {
        "Command line parameters": settings,
        "Configuration setup": _setup(row),
        "Execution results": _results(row),
    }
    return "".join(_csv([[title], *table.items(), []]) for title, table in sections.items())


def _json_report(row: BenchRow, settings: Mapping[str, object]) -> str:
    options = {name: str(value) for name, value in settings.items()}
    document = {"cmd_options": options, "configuration_setup": _setup(row), "execution_results": _results(row)}
    return json.dumps(document, indent=1) + "\n"


def _average(runs: Sequence[Sequence[Counter]]) -> list[Counter]:
    """One counter for each name, its times the means over all inferences."""
    first: dict[str, Counter] = {}
    total_s: dict[str, list[float]] = {}
    for counter in (counter for run in runs for counter in run):
        first.setdefault(counter.name, counter)
        sums = total_s.setdefault(counter.name, [0.0, 0.0])
        sums[0] += counter.real_s / len(runs)
        sums[1] += counter.cpu_s / len(runs)
    return [Counter(name, each.status, each.op_type, each.exec_type, *total_s[name]) for name, each in first.items()]


def _csv_counters(counters: Sequence[Counter]) -> str:
    rows: list[Sequence[object]] = [
        ("layerName", "execStatus", "layerType", "execType", "realTime (ms)", "cpuTime (ms)")
    ]
    rows += [(c.name, c.status, c.op_type, c.exec_type, _ms(c.real_s), _ms(c.cpu_s)) for c in counters]
    totals = _ms(sum(c.real_s for c in counters)), _ms(sum(c.cpu_s for c in counters))
    return _csv([*rows, ("Total", "", "", "", *totals), ()])


def _json_counters(runs: Sequence[Sequence[Counter]], kind: str) -> str:
    documents = [
        {
            "nodes": [
                {
                    "name": c.name,
                    "node_type": c.op_type,
                    "status": c.status,
                    "real_time": _ms(c.real_s),
                    "cpu_time": _ms(c.cpu_s),
                    "exec_type": c.exec_type,
                }
                for c in counters
            ],
            "total_real_time": _ms(sum(c.real_s for c in counters)),
            "total_cpu_time": _ms(sum(c.cpu_s for c in counters)),
        }
        for counters in runs
    ]
    if kind == "average_counters":
        return json.dumps({"report_type": "average", "avg_performance": documents[0]}, indent=1) + "\n"
    return json.dumps({"report_type": "detailed", "detailed_performance": documents}, indent=1) + "\n"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=";", lineterminator="\n").writerows(rows)
    return text.getvalue()
