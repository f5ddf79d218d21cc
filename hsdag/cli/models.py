"""Command ``hsdag models``: list and build models of the offline zoo, and workloads that need no model file."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag.cli.options import Json, Platform
from hsdag.cli.output import check_files, print_json, print_table

models = typer.Typer(help="List and build models and workloads of the offline zoo.", no_args_is_help=True,
                  rich_markup_mode=None)  # fmt: skip


@models.command("list")
def list_(as_json: Json = False) -> None:
    """List the models and workloads that can be built."""
    from hsdag.commands.inspect import zoo

    contents = zoo()
    if as_json:
        print_json(contents.model_dump(mode="json"))
        return
    print_table(None, ["model", "summary"], [[entry.name, entry.summary] for entry in contents.models])
    typer.echo()
    print_table(None, ["workload", "summary"], [[entry.name, entry.summary] for entry in contents.workloads])


@models.command("build")
def build(
    name: str = typer.Argument(
        help="A name from 'hsdag models list'; workloads take options: chain[devices=4;seed=1]."
    ),
    output: Path = typer.Option(
        ..., "--output", "-o", help="The file to write: .xml for a model (a .bin goes beside it), .json for a workload."
    ),
    seed: int | None = typer.Option(None, "--seed", help="Seed of random weights or graphs. Default: 0."),
    platform: Platform = None,
    devices: int | None = typer.Option(
        None, "--devices", metavar="K", help="Place a workload on the first K devices of its platform."
    ),
    as_json: Json = False,
) -> None:
    """Build a model as OpenVINO IR with random fp16 weights, or a workload as a problem file with analytic costs."""
    from hsdag.base.errors import OptionError
    from hsdag.commands.inspect import BuiltModel
    from hsdag.models import check_model_name, save_model_files
    from hsdag.models.registry import names_workload

    if names_workload(name):
        flags = [f"{key}={value}" for key, value in (("devices", devices), ("seed", seed)) if value is not None]
        bare, _, options = name.removesuffix("]").partition("[")
        text = f"{bare}[{';'.join(filter(None, [options, *flags]))}]" if flags else name
        _build_workload(text, output, platform, as_json)
        return
    check_model_name(name)
    wrong = [flag for flag, value in (("--platform", platform), ("--devices", devices)) if value is not None]
    if wrong:
        raise OptionError(f"{wrong[0]} is for workloads; {name} is a model, which takes --seed alone")
    written = save_model_files(name, output, seed or 0)
    if as_json:
        print_json(BuiltModel(name=name, seed=seed or 0, path=written).model_dump(mode="json"))
    else:
        typer.echo(f"wrote {written}")


def _build_workload(name: str, output: Path, platform: str | None, as_json: bool) -> None:
    """Write a workload's problem file and print what it holds."""
    from hsdag.base.errors import OptionError
    from hsdag.commands.inspect import BuiltWorkload
    from hsdag.commands.sources import build_problem
    from hsdag.runtime.problem.problem_file import write_problem

    if output.suffix != ".json":
        raise OptionError(f"a workload's problem file must end in .json, got {str(output)!r}")
    check_files([output], [])
    problem = build_problem(name, platform)
    write_problem(problem, output)
    counts = {"ops": problem.num_ops, "edges": len(problem.edge_src), "devices": problem.num_devices}
    if as_json:
        print_json(BuiltWorkload(name=name, path=output, **counts, source=problem.source.value).model_dump(mode="json"))
    else:
        shown = ", ".join(f"{count} {what}" for what, count in counts.items())
        typer.echo(f"wrote {output}: {shown}; costs are {problem.source.value}")
