"""``hsdag simulate``: what a placement of a problem file would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hsdag import api
from hsdag.cli.output import JSON_OPTION, milliseconds, print_json, print_table

if TYPE_CHECKING:
    from hsdag.commands.simulate import SimulateResult
    from hsdag.runtime.timeline.timeline import Timeline

EXECUTION_OPTION = typer.Option("work-conserving", "--execution", help="work-conserving, or sequential as HETERO.")
ORDER_OPTION = typer.Option(
    None,
    "--order",
    help="priority, fifo, critical-path, depth-first or random. Default: priority where there are some, else fifo.",
)
LINKS_OPTION = typer.Option("independent", "--links", help="independent, egress or channel; blocking for throughput.")
OBJECTIVE_OPTION = typer.Option("latency", "--objective", help="latency or throughput.")
TRACE_OPTION = typer.Option(None, "--trace", help="Write the timeline as a trace for Perfetto: FILE.json.")
GANTT_OPTION = typer.Option(None, "--gantt", help="Draw the timeline: FILE.png or FILE.svg.")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("simulate")(simulate)


def simulate(
    problem: Path = typer.Argument(help="A problem file: ops with times per device, edges, links."),
    placement: Path = typer.Argument(help="A placement: {op name: device name}, or a file of hsdag place or solve."),
    execution: str = EXECUTION_OPTION,
    order: str | None = ORDER_OPTION,
    links: str = LINKS_OPTION,
    objective: str = OBJECTIVE_OPTION,
    noise: float = typer.Option(0.0, "--noise", help="Multiply durations by exp(SIGMA z), z standard normal."),
    seed: int = typer.Option(0, "--seed", help="Seed of the noise and of --order random."),
    runs: int = typer.Option(1, "--runs", help="With noise: so many runs, with seeds from --seed on."),
    trace: Path | None = TRACE_OPTION,
    gantt: Path | None = GANTT_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Simulate a placement: makespan or period, load and peak memory of each device, transfers."""
    check_files([trace, gantt], [problem, placement], gantt)
    answer = api.simulate(
        problem,
        placement,
        execution=execution,
        order=order,
        links=links,
        objective=objective,
        noise=noise,
        seed=seed,
        runs=runs,
    )
    write_timeline(answer.timeline, trace, gantt)
    if as_json:
        print_json(answer.document())
    else:
        _show(answer)


def check_files(outputs: list[Path | None], inputs: list[Path], gantt: Path | None) -> None:
    """Raise a HsdagError for a file that could not be written in the end, before any work is done for it."""
    from hsdag.commands.simulate import check_outputs
    from hsdag.reports import check_picture
    from hsdag.search.options import check_writable

    named = [path for path in outputs if path is not None]
    for path in named:
        check_writable(path)
    check_outputs(named, inputs)
    if gantt is not None:
        check_picture(gantt)


def write_timeline(timeline: Timeline, trace: Path | None, gantt: Path | None) -> None:
    """Write the files that were asked for."""
    from hsdag.reports import write_gantt
    from hsdag.runtime.timeline.trace import write_trace

    if trace is not None:
        write_trace(timeline, trace)
    if gantt is not None:
        write_gantt(timeline, gantt)


def _show(answer: SimulateResult) -> None:
    from hsdag.commands.simulate import noise_document

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
    how = answer.semantics
    order = how.order.value if how.order else "fifo"
    title = f"SIMULATED {problem.name}: {how.execution.value}, order {order}, links {how.links.value}"
    typer.echo(title)
    print_table(None, ["device", "ops", "busy ms", "busy %", "peak MiB", "memory MiB"], rows)
    sent = f"{run.num_transfers} transfers, {mebibytes(run.transfer_bytes)} MiB"
    name = answer.objective.value_name.removesuffix("_s")
    typer.echo(f"Simulated {name} {milliseconds(answer.value_s)} ms; {sent}")
    if len(answer.samples_s):
        noise = noise_document(answer.samples_s)
        shown = ", ".join(f"{key.removesuffix('_s')} {milliseconds(noise[key])}" for key in noise if key != "runs")
        typer.echo(f"Over {noise['runs']} noisy runs, in ms: {shown}")
    for device in answer.over_memory:
        typer.echo(f"{device} holds more than its memory: this placement cannot run there.")


def mebibytes(size_bytes: float) -> str:
    """Bytes as MiB with four digits."""
    return f"{size_bytes / 2**20:.4g}"
