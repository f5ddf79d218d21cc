"""``hsdag export``, ``explain``, ``report`` and ``schema``: what is made of placements, searches, and hsdag itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from hsdag import api
from hsdag.cli.options import Json, Shape
from hsdag.cli.output import check_not_read, model_files, print_json, print_table, say
from hsdag.exports import export_formats

COMMANDS = ("explain", "export", "report", "schema")


def export(
    placement: Path = typer.Argument(help="A placement file of 'hsdag place', or its run folder."),
    format_: str = typer.Option("json", "--format", "-f", help=f"One of {', '.join(export_formats())}."),
    output: Path = typer.Option(..., "--output", "-o", help="The file to write; openvino makes a new folder."),
    model: Path | None = typer.Option(
        None, "--model", "-m", help="The placed model; formats that hold the model need it, the others check it."
    ),
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Write a placement as a deployable artefact."""
    from hsdag.exports.base import written_files

    if model is not None:
        check_not_read(written_files(format_, output), model_files(model))
    result = api.export(placement, format_, output, model, shape=shape)
    for note in result.notes:
        say(note)
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        written = f"{output}, {len(result.files)} files" if output.is_dir() else " and ".join(map(str, result.files))
        typer.echo(f"wrote {written}")


def explain(
    placement: Annotated[Path, Argument(help="A placement file of hsdag place, or its run folder.")],
    run: Annotated[
        Path | None, Option("--run", help="The run folder it came from. Default: the one beside the placement.")
    ] = None,
    model: Annotated[
        Path | None, Option("--model", help="The placed model: it is profiled, unless the cache has its profile.")
    ] = None,
    shape: Shape = None,
    top: Annotated[int, Option("--top", min=1, metavar="N", help="Rows of each table.")] = 5,
    as_json: Json = False,
) -> None:
    """Say why a placement is as it is, and what is left to gain. Also what could be changed, and what each op gains.

    Figures are simulated, by the costs that the search ended with, unless they are called measured.
    """
    from hsdag.reporting.explaining import explain as run_explain

    found = run_explain(placement, run=run, model=model, shape=shape, on_step=say)
    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
    else:
        for sentence in found.sentences:
            typer.echo(sentence)
        for title, columns, rows in found.tables(top):
            print_table(title, columns, rows)


def report(
    run: Path = typer.Argument(help="A run folder of 'hsdag place', or the placement file that it lies beside."),
    output: Path | None = typer.Option(None, "--output", "-o", help="The HTML file. Default: the run's name."),
    as_json: Json = False,
) -> None:
    """Write what a search found, and why, as one HTML file. It needs no network."""
    from hsdag.reporting.report import report as run_report

    result = run_report(run, output)
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        typer.echo(f"wrote {result.files[0]}")
        typer.echo(result.sentence)


def schema(
    command: list[str] | None = typer.Argument(None, help="A command, such as place or models list."),
) -> None:
    """Print the JSON schema of what a command prints with --json. Without a command, list those that have one."""
    from hsdag.schemas import RESULTS, schema_of

    if command:
        print_json(schema_of(" ".join(command)))
    else:
        print_table(None, ["command"], [[name] for name in RESULTS])
