"""``hsdag models``: the offline zoo."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag.cli.output import JSON_OPTION, print_json, print_table

app = typer.Typer(help="The offline zoo of models to be placed.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(as_json: bool = JSON_OPTION) -> None:
    """List the models that can be built."""
    from hsdag.models import list_models

    specs = list_models()
    if as_json:
        print_json({"models": [{"name": spec.name, "summary": spec.summary} for spec in specs]})
        return
    print_table(None, ["model", "summary"], [[spec.name, spec.summary] for spec in specs])


@app.command("build")
def build(
    name: str = typer.Argument(help="A name from 'hsdag models list'."),
    output: Path = typer.Option(..., "--output", "-o", help="The .xml file to write; the .bin goes beside it."),
    seed: int = typer.Option(0, "--seed", help="Seed of the random weights."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Build a model with random weights, convert it, and save it as OpenVINO IR with fp16 weights."""
    from hsdag.models import save_model_files

    written = save_model_files(name, output, seed)
    if as_json:
        print_json({"name": name, "seed": seed, "path": str(written)})
    else:
        typer.echo(f"wrote {written}")
