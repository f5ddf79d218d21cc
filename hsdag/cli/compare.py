"""``hsdag compare``: all methods on one problem, under one budget, with several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hsdag.cli import completion, options
from hsdag.cli.files import check_files
from hsdag.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from hsdag.comparing.compare import Comparison


def compare(
    source: str = typer.Argument(
        autocompletion=completion.workloads, help="A problem file, a workload of 'hsdag models list', or a model file."
    ),
    methods: str | None = typer.Option(None, "--methods", help="Methods, separated by commas. Default: all."),
    seeds: int = typer.Option(5, "--seeds", help="Searches of each method, with seeds 0, 1, ..."),
    objective: options.Objective = "latency",
    execution: options.Execution = "work-conserving",
    order: options.Order = None,
    links: options.Links = "independent",
    budget: str = typer.Option("10s", "--budget", help="Time of each search: 10s, 5m, 1h."),
    max_evaluations: int | None = typer.Option(None, "--max-evaluations", help="End a search after N placements."),
    platform: str | None = typer.Option(
        None,
        "--platform",
        autocompletion=completion.platforms,
        help="Workloads and models: analytic costs of a platform, by name or as a .toml file.",
    ),
    option: list[str] | None = typer.Option(
        None, "--option", metavar="NAME=VALUE", help="An option of the workload, such as devices=8. Repeatable."
    ),
    devices: options.Devices = None,
    partition_cpu: options.PartitionCpu = None,
    shape: options.Shape = None,
    data_shapes: options.DataShape = None,
    tokens: options.Tokens = None,
    workers: options.Workers = None,
    output: Path | None = typer.Option(
        None, "--output", "-o", help="Write the comparison after every run: FILE.json. Default: the resumed file."
    ),
    resume: Path | None = typer.Option(None, "--resume", help="Go on with the comparison in this file."),
    as_json: options.Json = False,
) -> None:
    """Compare methods on a problem; every figure is simulated, a model's costs are profiled or a platform's."""
    from hsdag.cli.progress import SearchProgress
    from hsdag.comparing.compare import CompareOptions, Comparison, problem_called
    from hsdag.comparing.compare import compare as run_compare
    from hsdag.ir.graph.reader import input_shapes
    from hsdag.methods.registry import parse_changes
    from hsdag.models.registry import parse_workload_options
    from hsdag.search.options import SolveOptions, input_scenarios
    from hsdag.solving.simulate import parse_semantics

    check_files([output], [Path(source)])
    judged = {"objective": objective, "semantics": parse_semantics(execution, order, links)}
    spends = {"budget": budget, "max_evaluations": max_evaluations, "workers": workers}
    named = tuple(name.strip() for name in methods.split(",")) if methods else ()
    wanted = CompareOptions(named, seeds, SolveOptions.of({**judged, **spends}))
    past, written = Comparison.load(resume) if resume is not None else None, output or resume
    problem = problem_called(
        source,
        platform=platform,
        workload=parse_workload_options(parse_changes(option or (), "--option")),
        devices=devices,
        partition_cpu=partition_cpu,
        shapes=input_shapes(shape),
        scenarios=input_scenarios(data_shapes or (), tokens),
        on_step=say,
    )

    def keep(found: Comparison) -> None:
        if written is not None:
            found.save(written)

    with SearchProgress(wanted.search.budget_s) as progress:
        found = run_compare(problem, wanted, progress.watcher, past=past, keep=keep)
    keep(found)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _show(found)
    if not found.is_complete:
        say(f"interrupted: {len(found.runs)} runs are in the table" + (f" and in {written}" if written else ""))


def _show(found: Comparison) -> None:
    typer.echo(found.title())
    print_table(None, *found.table())
    for line in found.remarks():
        typer.echo(line)
