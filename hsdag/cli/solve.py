"""Commands ``hsdag solve``, ``simulate`` and ``compare``: run methods and placements on a problem, without a model."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag import api
from hsdag.base.errors import OutputError
from hsdag.cli import options
from hsdag.cli.output import check_files, milliseconds, print_json, print_table, say, show_semantics, write_timeline

if TYPE_CHECKING:
    from hsdag.runtime.simulator.simulation import Simulation
    from hsdag.search.solution import SolveResult

COMMANDS = ("compare", "simulate", "solve")

SCHEDULE_SHOWN = 40
"""Print the schedule of problems with at most this many ops, and the load of each device for larger ones."""


@options.takes(api.simulate)
def simulate(
    problem: options.ProblemFile,
    placement: Path = typer.Argument(
        help="A placement: a JSON file {op name: device name}, or a file of 'hsdag place' or 'hsdag solve'."
    ),
    trace: options.Trace = None,
    as_json: options.Json = False,
    **shared: Any,
) -> None:
    """Simulate a placement: makespan, load, peak memory, transfers."""
    check_files([trace], [problem, placement])
    answer = api.simulate(problem, placement, **shared)
    write_timeline(answer.timeline, trace)
    if as_json:
        print_json(answer.model_dump(mode="json", by_alias=True))
        return
    show_semantics(answer.problem.name, answer.semantics)
    print_table(None, *answer.table())
    typer.echo(answer.sentence)
    for device in answer.over_memory:
        typer.echo(f"{device} holds more than its memory: this placement cannot run there.")


@options.takes(api.solve)
def solve(
    problem: options.ProblemFile,
    output: Path | None = typer.Option(
        None, "--output", "-o", metavar="FILE.json", help="Write the placement to this file."
    ),
    trace: options.Trace = None,
    as_json: options.Json = False,
    **shared: Any,
) -> None:
    """Search for a placement of a problem. All figures are simulated."""
    from hsdag.cli.progress import SearchProgress
    from hsdag.runtime.objectives import find_objective
    from hsdag.search.options import parse_duration

    check_files([output, trace], [problem])
    with SearchProgress(parse_duration(shared["budget"]), text=find_objective(shared["objective"]).text) as progress:
        progress.on_phase(f"loading the method {shared['method']}")
        solution = api.solve(
            problem,
            **shared,
            watcher=progress.watcher,
            on_better=None if output is None else partial(_keep, output),
        )
    write_timeline(solution.timeline, trace)
    if output is not None and solution.affinity is not None:
        solution.placement.save(output)
    print_json(solution.model_dump(mode="json", by_alias=True)) if as_json else _show(solution, output)


def _keep(output: Path, best: SolveResult) -> None:
    """Save the best placement so far, if there is room, so that a killed search can be started from it."""
    with suppress(OutputError):
        best.placement.save(output)


def _show(solution: SolveResult, output: Path | None) -> None:
    """Print the schedule, the answer and the statistics of a search."""
    from hsdag.search.driver import members_table

    if solution.run is not None:
        _show_schedule(solution, solution.run)
    typer.echo(solution.sentence)
    for name, value in solution.single_devices.items():
        note = ", which breaks a pin" if name in solution.breaking else ""
        typer.echo(f"All on {name}: {solution.objective.text(value)}{note}")
    if solution.members:
        print_table(None, *members_table(solution.members, solution.objective))
    spent = f"{solution.num_evaluations} placements evaluated in {solution.elapsed_s:.1f} s"
    typer.echo(f"{solution.options.method}: {spent}; {solution.status.value}. {solution.status.sentence}")
    if solution.interrupted:
        typer.echo("The search was interrupted.")
    if output is not None and solution.affinity is not None:
        typer.echo(f"The placement is in {output}")


def _show_schedule(solution: SolveResult, run: Simulation) -> None:
    """Print the schedule of a small problem, or the load of each device."""
    import numpy as np

    problem = solution.problem
    names = problem.device_names
    show_semantics(problem.name, solution.semantics)
    if problem.num_ops > SCHEDULE_SHOWN:
        loads = zip(names, np.bincount(run.device, minlength=len(names)).tolist(), run.busy_s.tolist(), strict=True)
        print_table(None, ["device", "ops", "busy ms"], [[name, str(n), milliseconds(s)] for name, n, s in loads])
        return
    times = zip(run.device.tolist(), run.start_s.tolist(), run.end_s.tolist(), strict=True)
    rows = sorted((start, end, v, d) for v, (d, start, end) in enumerate(times))
    cells = [[problem.op_names[v], names[d], milliseconds(start), milliseconds(end)] for start, end, v, d in rows]
    print_table(None, ["op", "device", "start ms", "end ms"], cells)


@options.takes(api.compare)
def compare(
    source: str = typer.Argument(help="A problem file, a workload, for example chainmm[devices=8], or a model file."),
    methods: str | None = typer.Option(None, "--methods", help="Methods, separated by commas. Default: all."),
    seeds: int = typer.Option(5, "--seeds", help="Number of searches with each method, with seeds 0, 1, ..."),
    budget: str = typer.Option("10s", "--budget", help="Time limit of each search: 10s, 5m, 1h."),
    platform: options.Platform = None,
    output: Path | None = typer.Option(
        None,
        "--output",
        "-o",
        help="Write the comparison after every run: FILE.json, or all runs as FILE.csv. Default: the resumed file.",
    ),
    resume: Path | None = typer.Option(None, "--resume", help="Continue the comparison in this file."),
    as_json: options.Json = False,
    **shared: Any,
) -> None:
    """Compare methods on a problem. Figures are simulated; the costs of a model are profiled or those of a platform."""
    from hsdag.cli.progress import SearchProgress
    from hsdag.search.options import parse_duration

    check_files([output], [Path(source)])
    shared |= {"seeds": seeds, "budget": budget, "platform": platform}
    with SearchProgress(parse_duration(budget)) as progress:
        comparison = api.compare(
            source, methods or (), **shared, output=output, resume=resume, watcher=progress.watcher
        )
    if as_json:
        print_json(comparison.model_dump(mode="json"))
    else:
        typer.echo(comparison.title())
        print_table(None, *comparison.table())
        for line in comparison.remarks():
            typer.echo(line)
    if not comparison.is_complete:
        written = output or resume
        say(f"interrupted: {len(comparison.runs)} runs are in the table" + (f" and in {written}" if written else ""))
