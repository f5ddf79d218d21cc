"""``hsdag explain``: why a placement is as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from hsdag.cli.options import Json, Shape
from hsdag.cli.output import megabytes, milliseconds, print_json, print_table, say

if TYPE_CHECKING:
    from hsdag.explaining.explanation import Explanation

MOST_NAMED = 2
"""Tensors of a boundary that the table names."""


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
        _show(found, top)


def _show(found: Explanation, top: int) -> None:
    if found.regions:
        rows = []
        for region in found.regions[:top]:
            shares = " ".join(f"{name}:{100 * share:.0f}%" for name, share in region.shares.items())
            known = [milliseconds(each) if each else "-" for each in (region.whole_s, region.divided_s)]
            rows.append([region.first, region.last, region.scheme, str(region.num_ops), shares, *known])
        title = f"SIMULATED: the longest of {len(found.regions)} regions that devices divide, without syncs"
        print_table(title, ["from", "to", "scheme", "ops", "shares", "whole ms", "divided ms"], rows)
    if found.gains:
        title = "SIMULATED: what units gain from where they are, by their heaviest op"
        rows = [
            [each.op, each.op_type, each.device, each.other, milliseconds(each.moved), _signed(each.gain)]
            for each in found.gains[:top]
        ]
        print_table(title, ["op", "type", "on", "moved to", "then ms", "more ms"], rows)
    if found.boundaries:
        rows = []
        for each in sorted(found.boundaries, key=lambda boundary: -boundary.seconds)[:top]:
            names = [tensor.op for tensor in each.tensors[:MOST_NAMED]] + ["..."] * (len(each.tensors) > MOST_NAMED)
            way = f"{','.join(each.sources)} to {each.device}"
            figures = [str(each.launches), str(len(each.tensors)), megabytes(each.size_bytes)]
            rows.append([each.op, way, *figures, milliseconds(each.seconds), ", ".join(names)])
        title = f"SIMULATED: the costliest of {len(found.boundaries)} boundaries, by the first op behind them"
        print_table(title, ["op", "way", "launches", "tensors", "MB", "ms", "of"], rows)
    if found.limits:
        rows = [
            [f"{each.kind} {each.name}".strip(), milliseconds(each.seconds), f"{100 * each.gain:.1f}"]
            for each in found.limits
        ]
        print_table("SIMULATED: what takes time, and what the placement would gain without it", COLUMNS, rows)
    for sentence in found.sentences:
        typer.echo(sentence)


COLUMNS = ["cost", "ms", "gain at most %"]


def _signed(seconds: float) -> str:
    return f"{1e3 * seconds:+.3g}"
