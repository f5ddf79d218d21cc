"""``hsdag reproduce``: a table of a paper, its figures beside ours."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hsdag.cli import completion
from hsdag.cli.files import check_files
from hsdag.cli.options import Json, Workers
from hsdag.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hsdag.commands.reproducing import Reproduction


def reproduce(
    table: str | None = typer.Argument(
        None, autocompletion=completion.tables, help="A table by name, such as doppler-2; --list names them."
    ),
    list_tables: bool = typer.Option(False, "--list", help="List the tables."),
    row: list[str] | None = typer.Option(None, "--row", help="Only this row of the table. Repeatable."),
    column: list[str] | None = typer.Option(None, "--column", help="Only this column of the table. Repeatable."),
    budget: str = typer.Option("10s", "--budget", help="Time of each search: 10s, 5m, 1h."),
    max_evaluations: int | None = typer.Option(None, "--max-evaluations", help="End a search after N placements."),
    seeds: int = typer.Option(3, "--seeds", help="Searches of each figure, with seeds 0, 1, ..."),
    workers: Workers = None,
    output: Path | None = typer.Option(None, "--output", "-o", help="Write the table after every figure: FILE.json."),
    markdown: bool = typer.Option(False, "--markdown", help="Print the table in Markdown."),
    as_json: Json = False,
) -> None:
    """Reproduce a table of the HSDAG, DOPPLER, DiviML or Placeto paper; what is simulated is called so."""
    import json
    from dataclasses import replace

    from hsdag.cli.progress import SearchProgress
    from hsdag.commands.reproducing import RECIPES, Effort
    from hsdag.commands.reproducing import reproduce as run_reproduce
    from hsdag.fleet.workers import pool_of
    from hsdag.ir.errors import OptionError
    from hsdag.ir.placement import write_atomically
    from hsdag.reports.paper_tables import find_table
    from hsdag.search.options import parse_duration

    if list_tables:
        _list(as_json)
        return
    if table is None:
        raise OptionError("name a table, or --list them")
    if markdown and as_json:
        raise OptionError("--markdown and --json exclude each other")
    wanted, effort = find_table(table), Effort(parse_duration(budget), max_evaluations, seeds)
    check_files([output], [])
    given = ["--budget", budget, "--seeds", str(seeds)]
    given += [] if max_evaluations is None else ["--max-evaluations", str(max_evaluations)]
    given += [text for name in row or () for text in ("--row", name)]
    given += [text for name in column or () for text in ("--column", name)]

    def keep(found: Reproduction) -> None:
        if output is not None:
            write_atomically(output, (json.dumps(found.document(), indent=1, allow_nan=False) + "\n").encode())

    progress = SearchProgress(effort.num_seeds * effort.budget_s)
    with progress, pool_of(workers, progress.watcher.note) as pool:
        found = run_reproduce(
            wanted,
            RECIPES[wanted.name],
            replace(effort, pool=pool),
            shlex.join(["hsdag", "reproduce", table, *given]),
            rows=row or (),
            columns=column or (),
            watcher=progress.watcher,
            keep=keep,
        )
    keep(found)
    if as_json:
        print_json(found.document())
    elif markdown:
        typer.echo(found.markdown(), nl=False)
    else:
        _show(found)


def _show(found: Reproduction) -> None:
    typer.echo(found.title())
    columns, lines = found.rows()
    if lines:
        print_table(None, columns, lines)
    for line in found.remarks():
        typer.echo(line)


def _list(as_json: bool) -> None:
    from hsdag.commands.reproducing import RECIPES
    from hsdag.reports.paper_tables import PAPER_TABLES

    tables = [
        {"table": each.name, "paper": each.paper, "number": each.number, "title": each.title,
         "ours": RECIPES[each.name].kind}
        for each in PAPER_TABLES.values()
    ]  # fmt: skip
    if as_json:
        print_json({"tables": tables})
    else:
        print_table(None, ["table", "paper", "number", "title", "ours"], [list(each.values()) for each in tables])
