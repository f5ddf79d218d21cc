"""``hsdag export``: deployable artefacts from a placement."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag.cli.output import JSON_OPTION, SHAPE_OPTION, print_json


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("export")(export)


def export(
    placement: Path = typer.Argument(help="A placement file written by 'hsdag place'."),
    format_: str = typer.Option("json", "--format", "-f", help="json, csv, ir, python, cpp or dot."),
    output: Path = typer.Option(..., "--output", "-o", help="The file to write."),
    model: Path | None = typer.Option(None, "--model", "-m", help="The placed model; ir and dot need it."),
    shape: str | None = SHAPE_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Write a placement as a deployable artefact."""
    from hsdag.ir import Placement, load_model, parse_shapes
    from hsdag.ir.export import export_placement
    from hsdag.search.options import check_not_model

    loaded = Placement.load(placement)
    if model is not None:
        check_not_model((output.with_suffix(suffix) for suffix in (output.suffix, ".xml", ".bin")), model)
    network = None
    if model is not None:
        network = load_model(model, parse_shapes(shape) if shape else {}, spare=loaded.model.input_shapes)
    written = export_placement(loaded, format_, output, network)
    if as_json:
        print_json({"format": format_, "files": [str(path) for path in written]})
    else:
        typer.echo("wrote " + " and ".join(str(path) for path in written))
