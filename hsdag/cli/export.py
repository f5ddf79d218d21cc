"""``hsdag export``: deployable artefacts from a placement."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag.cli import completion
from hsdag.cli.files import check_not_model
from hsdag.cli.options import Json, Shape
from hsdag.cli.output import print_json, say


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
        check_not_model(written_files(format_, output), model)
    result = run_export(placement, format_, output, model, shape=shape)
    for note in result.notes:
        say(note)
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        written = f"{output}, {len(result.files)} files" if output.is_dir() else " and ".join(map(str, result.files))
        typer.echo(f"wrote {written}")
