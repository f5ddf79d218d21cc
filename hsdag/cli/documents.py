"""``hsdag export``, ``report`` and ``schema``: documents made of placements, of searches, and of hsdag itself."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag.cli import completion
from hsdag.cli.files import check_not_read, check_writable, model_files
from hsdag.cli.options import Json, Shape
from hsdag.cli.output import print_json, print_table, say

COMMANDS = ("export", "report", "schema")


def export(
    placement: Path = typer.Argument(help="A placement file written by 'hsdag place'."),
    format_: str = typer.Option(
        "json", "--format", "-f", autocompletion=completion.formats, help=f"One of {', '.join(completion.formats())}."
    ),
    output: Path = typer.Option(..., "--output", "-o", help="The file to write; ovms and parts make a new folder."),
    model: Path | None = typer.Option(
        None, "--model", "-m", help="The placed model; formats that hold the model need it, the others check it."
    ),
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Write a placement as a deployable artefact."""
    from hsdag.exports.base import export as run_export
    from hsdag.exports.base import written_files

    if model is not None:
        check_not_read(written_files(format_, output), model_files(model))
    result = run_export(placement, format_, output, model, shape=shape)
    for note in result.notes:
        say(note)
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        written = f"{output}, {len(result.files)} files" if output.is_dir() else " and ".join(map(str, result.files))
        typer.echo(f"wrote {written}")


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


def schema(
    command: list[str] | None = typer.Argument(
        None, autocompletion=completion.answering, help="A command, such as place or models list."
    ),
) -> None:
    """Print the JSON schema of what a command prints with --json; without a command, list those that have one."""
    from hsdag.schemas import RESULTS, schema_of

    if command:
        print_json(schema_of(" ".join(command)))
    else:
        print_table(None, ["command"], [[name] for name in RESULTS])
