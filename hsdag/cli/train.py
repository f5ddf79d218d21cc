"""Command ``hsdag train``: train a policy for reuse on problems of a family."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag.cli import options
from hsdag.cli.output import check_files, print_json, say


def train(
    family: str = typer.Argument(help="A family of problems, several joined by commas, or all."),
    output: Path = typer.Option(..., "--output", "-o", help="The policy file to write: FILE.safetensors."),
    method: str = typer.Option("rules", "--method", help="Method whose policy is trained: rules, doppler or hsdag."),
    problems: int = typer.Option(200, "--problems", help="Number of problems to train on."),
    updates: int = typer.Option(1500, "--updates", help="Number of updates of the policy."),
    expert_evaluations: int = typer.Option(
        60_000, "--expert-evaluations", help="Plans evaluated by the annealing that the policy is compared with."
    ),
    unseen: int = typer.Option(20, "--unseen", help="Number of other problems to test the policy on."),
    seed: int = typer.Option(0, "--seed", help="Seed of the problems and of the training."),
    changes: options.Settings = None,
    workers: options.Workers = None,
    resume: bool = typer.Option(False, "--resume", help="Continue an interrupted training."),
    as_json: options.Json = False,
) -> None:
    """Train a policy for searches to begin with, on many problems. All figures are simulated."""
    from hsdag.base.errors import OptionError
    from hsdag.cli.progress import SearchProgress
    from hsdag.commands.train.train import TrainOptions, run_train
    from hsdag.methods.registry import parse_changes
    from hsdag.search.evaluators.base import SearchStopped

    if output.suffix != ".safetensors":
        raise OptionError(f"a policy's file must end in .safetensors, got {str(output)!r}")
    check_files([output], [])
    hyper_parameters = parse_changes(changes or ())
    wanted = TrainOptions(
        family, method, problems, updates, expert_evaluations, unseen, seed, hyper_parameters, workers
    )
    with SearchProgress(None) as progress:
        try:
            result = run_train(wanted, output, resume=resume, watcher=progress.watcher)
        except SearchStopped as stop:
            state = output.with_suffix(".state")
            saved = f"--resume continues it with {state}" if state.exists() else "nothing was saved"
            say(f"the training was interrupted; {saved}")
            raise typer.Exit(130) from stop
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    tried = result.card["unseen"]
    first, least = (
        "-" if tried[name] is None else f"{tried[name]:.3f}" for name in ("first_over_annealing", "best_of_16")
    )
    typer.echo(
        f"On {tried['problems']} problems of {family} that were not trained on, the first answer takes {first} times "
        f"as long as annealing's of {expert_evaluations} plans, and the best of 16 {least} times (simulated)."
    )
    if tried["first_failed"]:
        typer.echo(
            "The means leave out problems with no plan within memory: the first answer on "
            f"{tried['first_failed']}, any of 16 on {tried['best_failed']}."
        )
    of_method = "" if method == "rules" else f"--method {method} "
    typer.echo(f"The policy is in {output}; use it in solve and place with {of_method}--init {output}")
