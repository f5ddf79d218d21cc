"""``hsdag simulate``: the simulated time of a placement of a problem file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag import api
from hsdag.cli import options
from hsdag.cli.files import check_files, write_timeline
from hsdag.cli.output import milliseconds, print_json, print_table, show_semantics

if TYPE_CHECKING:
    from hsdag.solving.simulate import SimulateResult


@options.takes(api.simulate)
def simulate(
    problem: options.ProblemFile,
    placement: Path = typer.Argument(help="A placement: {op name: device name}, or a file of hsdag place or solve."),
    trace: options.Trace = None,
    gantt: options.Gantt = None,
    as_json: options.Json = False,
    **given: Any,
) -> None:
    """Simulate a placement: makespan or period, load and peak memory of each device, transfers."""
    check_files([trace, gantt], [problem, placement], [gantt])
    answer = api.simulate(problem, placement, **given)
    write_timeline(answer.timeline, trace, gantt)
    if as_json:
        print_json(answer.document())
    else:
        _show(answer)


def _show(answer: SimulateResult) -> None:
    problem, run = answer.problem, answer.run
    rows = [
        [
            name,
            str(int((run.device == d).sum())),
            milliseconds(run.busy_s[d]),
            f"{100 * run.busy_s[d] / run.makespan_s:.1f}" if run.makespan_s else "-",
            mebibytes(run.peak_memory_bytes[d]),
            mebibytes(problem.memory_bytes[d]) if problem.memory_bytes[d] < float("inf") else "-",
        ]
        for d, name in enumerate(problem.device_names)
    ]
    show_semantics(problem.name, answer.semantics)
    print_table(None, ["device", "ops", "busy ms", "busy %", "peak MiB", "memory MiB"], rows)
    sent = f"{run.num_transfers} transfers, {mebibytes(run.transfer_bytes)} MiB"
    typer.echo(f"Simulated {answer.objective.label} {answer.objective.text(answer.value_s)}; {sent}")
    if answer.noise is not None:
        noise, objective = answer.noise, answer.objective
        shown = ", ".join(f"{key} {objective.figure(noise[key])}" for key in noise if key != "runs")
        unit = f", in {objective.shown_unit}" if objective.shown_unit else ""
        typer.echo(f"Over {noise['runs']} noisy runs{unit}: {shown}")
    for device in answer.over_memory:
        typer.echo(f"{device} holds more than its memory: this placement cannot run there.")


def mebibytes(size_bytes: float) -> str:
    """Bytes as MiB with four digits."""
    return f"{size_bytes / 2**20:.4g}"
