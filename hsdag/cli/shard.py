"""Command ``hsdag shard``: divide regions of a model over devices in given shares, without a search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from hsdag.cli.options import Devices, Json, Model, PartitionCpu, Shape
from hsdag.cli.output import check_files, model_files, print_json, print_table


def shard(
    model: Model,
    output: Annotated[
        Path,
        Option(
            "--output", "-o", help="The file to write: FILE.json for the placement, FILE.xml for the divided model."
        ),
    ],
    devices: Devices = None,
    partition_cpu: PartitionCpu = None,
    shares: Annotated[
        str | None, Option("--shares", help="Share of each device: 0.6,0.4. Default: equal shares.")
    ] = None,
    scheme: Annotated[
        list[str] | None,
        Option(
            "--scheme",
            metavar="SCHEME",
            help="How ops may be divided: rows, hidden, heads, channels or columns. Repeatable. Default: all.",
        ),
    ] = None,
    problem: Annotated[
        bool, Option("--problem", help="Profile the devices and write the divided model as a problem file.")
    ] = False,
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Divide a model over devices as far as its ops allow. The gain is not measured."""
    from hsdag.base.errors import OptionError
    from hsdag.commands.shard import ShardResult, divide, sharded_problem
    from hsdag.ir.graph.reader import input_shapes, write_ir
    from hsdag.ir.placement.divided import divided
    from hsdag.runtime.problem.problem_file import write_problem

    if output.suffix not in (".json", ".xml"):
        raise OptionError(f"--output {output} ends in neither .json (a placement) nor .xml (the divided model)")
    if problem and output.suffix != ".json":
        raise OptionError(f"--output {output} does not end in .json: --problem writes a problem file")
    check_files([output], model_files(model))
    loaded, placement = divide(model, devices, partition_cpu, shares, scheme or (), input_shapes(shape))
    if problem:
        write_problem(sharded_problem(model, loaded, placement, input_shapes(shape)), output)
        files = [output]
    elif output.suffix == ".xml":
        files = write_ir(divided(loaded, placement)[0], output)
    else:
        placement.save(output)
        files = [output]
    result = ShardResult(files=tuple(files), regions=placement.shards or ())
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    rows = []
    for region in result.regions:
        shares = ", ".join(f"{name} {first}..{last}" for name, (first, last) in region.shares.items())
        rows.append([region.scheme, str(len(region.ops)), placement.names.get(region.ops[-1], region.ops[-1]), shares])
    print_table(None, ["scheme", "ops", "up to", "shares"], rows)
    typer.echo(f"wrote {' and '.join(map(str, result.files))}")
