"""``hsdag export``: deployable artefacts from a placement."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag import api
from hsdag.cli import completion
from hsdag.cli.files import check_not_model
from hsdag.cli.options import Json, Shape
from hsdag.cli.output import print_json


def export(
    placement: Path = typer.Argument(help="A placement file written by 'hsdag place'."),
    format_: str = typer.Option(
        "json", "--format", "-f", autocompletion=completion.formats, help="json, csv, ir, python, cpp or dot."
    ),
    output: Path = typer.Option(..., "--output", "-o", help="The file to write."),
    model: Path | None = typer.Option(None, "--model", "-m", help="The placed model; ir and dot need it."),
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Write a placement as a deployable artefact."""
    if model is not None:
        beside = () if format_ in ("json", "csv", "dot") else (".xml", ".bin")
        check_not_model((output, *(output.with_suffix(suffix) for suffix in beside)), model)
    files = [str(path) for path in api.export(placement, format_, output, model, shape=shape).files]
    if as_json:
        print_json({"format": format_, "files": files})
    else:
        typer.echo("wrote " + " and ".join(files))
