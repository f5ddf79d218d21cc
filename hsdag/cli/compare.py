"""``hsdag compare``: all methods on one problem, under one budget, with several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from hsdag import api
from hsdag.cli import completion, options
from hsdag.cli.files import check_files
from hsdag.cli.output import print_json, print_table, say


@options.takes(api.compare)
def compare(
    source: str = typer.Argument(
        autocompletion=completion.workloads, help="A problem file, a workload of 'hsdag models list', or a model file."
    ),
    methods: str | None = typer.Option(None, "--methods", help="Methods, separated by commas. Default: all."),
    seeds: int = typer.Option(5, "--seeds", help="Searches of each method, with seeds 0, 1, ..."),
    budget: str = typer.Option("10s", "--budget", help="Time of each search: 10s, 5m, 1h."),
    platform: options.Platform = None,
    option: list[str] | None = typer.Option(
        None, "--option", metavar="NAME=VALUE", help="An option of the workload, such as devices=8. Repeatable."
    ),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="Write the comparison after every run: FILE.json. Default: the resumed file."
    ),
    resume: Path | None = typer.Option(None, "--resume", help="Go on with the comparison in this file."),
    as_json: options.Json = False,
    **given: Any,
) -> None:
    """Compare methods on a problem; every figure is simulated, a model's costs are profiled or a platform's."""
    from hsdag.cli.progress import SearchProgress
    from hsdag.search.options import parse_duration

    check_files([output], [Path(source)])
    named = tuple(name.strip() for name in methods.split(",")) if methods else ()
    given |= {"seeds": seeds, "budget": budget, "platform": platform, "option": option or ()}
    with SearchProgress(parse_duration(budget)) as progress:
        found = api.compare(source, named, **given, output=output, resume=resume, watcher=progress.watcher)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        typer.echo(found.title())
        print_table(None, *found.table())
        for line in found.remarks():
            typer.echo(line)
    if not found.is_complete:
        written = output or resume
        say(f"interrupted: {len(found.runs)} runs are in the table" + (f" and in {written}" if written else ""))
