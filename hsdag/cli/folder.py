"""``hsdag place FOLDER``: what became of each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from hsdag.cli.output import milliseconds, print_json, print_table

if TYPE_CHECKING:
    from hsdag.commands.place_folder import FolderEntry, FolderResult


def show_folder(found: FolderResult, *, as_json: bool) -> None:
    """Print the answer. Raises SearchError where a model failed, ``typer.Exit`` where models were not reached."""
    from hsdag.commands.place_folder import Outcome
    from hsdag.ir.errors import SearchError

    if as_json:
        print_json(found.document())
    else:
        columns = ["model", "outcome", "median ms", "x best device", "95% interval"]
        print_table(None, columns, [_row(each) for each in found.models])
        for each in found.models:
            if each.reason is not None:
                typer.echo(f"{each.model.name}: {each.reason}")
    if failed := found.count(Outcome.FAILED):
        raise SearchError(f"{failed} of {len(found.models)} models of {found.folder} failed")
    if found.count(Outcome.INTERRUPTED) or found.count(Outcome.NOT_REACHED):
        raise typer.Exit(130)


def _row(each: FolderEntry) -> list[str]:
    latency = each.placement.latency if each.placement is not None else None
    speedup = each.placement.speedup if each.placement is not None else None
    return [
        each.model.name,
        each.outcome.value,
        milliseconds(latency.median_s) if latency is not None else "-",
        f"{speedup.ratio:.3f}" if speedup is not None else "-",
        "{:.3f}..{:.3f}".format(*speedup.ci95) if speedup is not None else "-",
    ]
