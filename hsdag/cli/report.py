"""``hsdag report``: a search as a page."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag.cli.files import check_writable
from hsdag.cli.options import Json
from hsdag.cli.output import print_json


def report(
    run: Path = typer.Argument(help="A run folder of 'hsdag place', or the placement file that it lies beside."),
    output: Path | None = typer.Option(None, "--output", "-o", help="The HTML file. Default: the run's name."),
    explorer: Path | None = typer.Option(
        None, "--explorer", help="A folder for Model Explorer: the graph, and devices, parts, times and transfers."
    ),
    as_json: Json = False,
) -> None:
    """Write what a search found, and why, as one HTML file that needs no network."""
    from hsdag.reporting.report import report as run_report

    if output is not None:
        check_writable(output)
    result = run_report(run, output, explorer=explorer)
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    for path in result.files:
        typer.echo(f"wrote {path}")
    for sentence in (result.sentence, *result.notes):
        typer.echo(sentence)
