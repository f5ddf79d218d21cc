"""``hsdag explain``: why a placement is as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from hsdag.cli.options import Json, Shape
from hsdag.cli.output import print_json, print_table, say


def explain(
    placement: Annotated[Path, Argument(help="A placement file of hsdag place, or its run folder.")],
    run: Annotated[
        Path | None, Option("--run", help="The run folder it came from. Default: the one beside the placement.")
    ] = None,
    model: Annotated[
        Path | None, Option("--model", help="The placed model: it is profiled, unless the cache has its profile.")
    ] = None,
    shape: Shape = None,
    top: Annotated[int, Option("--top", min=1, help="Rows of each table.")] = 5,
    as_json: Json = False,
) -> None:
    """Say why a placement is as it is: what each op gains, what boundaries cost, and what limits it.

    Figures are simulated by the costs that the search ended with, but for those that say that they are measured.
    """
    from hsdag.explaining.explaining import explain as run_explain

    found = run_explain(placement, run=run, model=model, shape=shape, on_step=say)
    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
    else:
        for title, columns, rows in found.tables(top):
            print_table(f"SIMULATED: {title}", columns, rows)
        for sentence in found.sentences:
            typer.echo(sentence)
