"""Command ``hsdag place``: search for a placement of a model by measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag import api
from hsdag.cli import options
from hsdag.cli.output import check_not_read, model_files, print_json, print_table, workload_path

if TYPE_CHECKING:
    from hsdag.commands.place.result import PlaceResult


@options.takes(api.place)
def place(
    model: options.Model,
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The placement file to write. Default: MODEL's name with .placement.json."
    ),
    run: Path | None = typer.Option(None, "--run", help="The run folder to write. Default: OUTPUT's name with .run."),
    verbose: bool = typer.Option(
        False, "--verbose", "-v", help="Also show all candidates, differences of outputs, methods and memory."
    ),
    as_json: options.Json = False,
    **shared: Any,
) -> None:
    """Find out by measurement which device should run which op. Writes the placement to a file."""
    from hsdag.base.errors import OutputError
    from hsdag.cli.progress import SearchProgress
    from hsdag.ir.graph.reader import check_model_path
    from hsdag.runtime.objectives import find_objective
    from hsdag.search.options import parse_duration

    budget_s = parse_duration(shared["budget"])
    objective = find_objective(shared["objective"])
    named = workload_path(model) if shared["executor"] == "cuda" else None
    if named is None:
        check_model_path(model)
    default = model.with_name(f"{model.resolve().name}.placement.json") if model.is_dir() else None
    written = output or default or (named or model).with_suffix(".placement.json")
    folder = run or written.with_suffix(".run")
    check_not_read([written, folder], model_files(model, shared["inputs"]))
    if folder.resolve() == written.resolve():
        raise OutputError(f"the run folder cannot be {written} itself; name another one with --run")
    with SearchProgress(budget_s, objective.text) as progress:
        outcome = api.place(model, **shared, run_folder=folder, output=written, watcher=progress.watcher)
    if as_json:
        from hsdag.commands.place.result import IN_FILE

        print_json(outcome.model_dump(mode="json", exclude=IN_FILE))
    else:
        if verbose:
            _show_all(outcome)
        typer.echo(str(outcome))
        if outcome.interrupted:
            typer.echo("The search was interrupted; --resume continues it.")


def _show_all(outcome: PlaceResult) -> None:
    """Print the tables and sentences of ``--verbose``."""
    from hsdag.commands.place.tables import settings_table
    from hsdag.drawing import in_bytes
    from hsdag.runtime.objectives import find_objective
    from hsdag.search.driver import members_table

    print_table(None, *outcome.table())
    if any(setting.tried for setting in outcome.settings):
        print_table("settings that were tried, over the best before each", *settings_table(outcome.settings))
    for name, reason in outcome.failures.items():
        typer.echo(f"{name} did not run: {reason}")
    verdict = outcome.verdict
    if verdict.difference is not None:
        shown = {name: "not finite" if d is None else f"{d:.3g}" for name, d in verdict.difference.items()}
        typer.echo(
            f"Outputs against {verdict.versus}: max abs {shown['max_abs']}, max relative {shown['max_relative']} "
            f"(up to {verdict.tolerance:.2g} is allowed), cosine {shown['cosine']}, MSE {shown['mse']}"
        )
    else:
        typer.echo(f"Outputs were not compared: {verdict.reason}")
    if outcome.members:
        print_table(None, *members_table(outcome.members, find_objective(outcome.objective)))
    if outcome.tally.tried or outcome.tally.simulated:
        typer.echo(f"{outcome.tally.words} in {outcome.search_s:.1f} s")
    if sum(size > 0 for size in outcome.weight_bytes.values()) > 1:
        weights = ", ".join(f"{in_bytes(size)} on {name}" for name, size in outcome.weight_bytes.items())
        typer.echo(f"Weights and state of the placement: {weights}")
