"""Commands ``hsdag export``, ``explain``, ``report`` and ``schema``: write and print documents about placements."""

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
    format_: str = typer.Option("json", "--format", "-f", help=f"Export format: {', '.join(export_formats())}."),
    output: Path = typer.Option(..., "--output", "-o", help="The file to write; for openvino a new folder."),
    model: Path | None = typer.Option(
        None, "--model", "-m", help="The placed model. Formats that contain the model need it; the others check it."
    ),
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Write a placement as a deployable artefact."""
    from hsdag.exports.base import written_files

    read = [placement, *(() if model is None else model_files(model))]
    check_not_read(written_files(format_, output), read)
    result = api.export(placement, format_, output, model, shape=shape)
    for note in result.notes:
        say(note)
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        written = f"{output}, {len(result.files)} files" if output.is_dir() else " and ".join(map(str, result.files))
        typer.echo(f"wrote {written}")


def explain(
    placement: Annotated[Path, Argument(help="A placement file of 'hsdag place', or its run folder.")],
    run: Annotated[
        Path | None, Option("--run", help="The run folder of the placement. Default: the one next to it.")
    ] = None,
    model: Annotated[
        Path | None, Option("--model", help="The placed model, to be profiled unless the cache has its profile.")
    ] = None,
    shape: Shape = None,
    top: Annotated[int, Option("--top", min=1, metavar="N", help="Number of rows in each table.")] = 5,
    as_json: Json = False,
) -> None:
    """Say why a placement is as it is, and what is left to gain. Also says what to change, and what each op gains.

    Figures are simulated with the costs at the end of the search, unless they are called measured.
    """
    from hsdag.commands.explain.explain import explain as run_explain

    explanation = run_explain(placement, run=run, model=model, shape=shape, on_step=say)
    if as_json:
        print_json(explanation.model_dump(mode="json", by_alias=True))
    else:
        for sentence in explanation.sentences:
            typer.echo(sentence)
        for title, columns, rows in explanation.tables(top):
            print_table(title, columns, rows)


def report(
    run: Path = typer.Argument(help="A run folder of 'hsdag place', or the placement file next to it."),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The HTML file to write. Default: the run folder's name with .html."
    ),
    as_json: Json = False,
) -> None:
    """Write what a search found, and why, as one HTML file. The page needs no network."""
    from hsdag.commands.report.report import report as run_report

    result = run_report(run, output)
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        typer.echo(f"wrote {result.files[0]}")
        typer.echo(result.sentence)


def schema(
    command: list[str] | None = typer.Argument(None, help="A command, for example place or models list."),
) -> None:
    """Print the JSON schema of a command's --json output. Without a command, list the commands that have one."""
    from hsdag.schemas import RESULTS, schema_of

    if command:
        print_json(schema_of(" ".join(command)))
    else:
        print_table(None, ["command"], [[name] for name in RESULTS])
