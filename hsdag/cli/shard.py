"""``hsdag shard``: regions of a model divided over devices by hand."""

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
        Path, Option("--output", "-o", help="The placement to write, FILE.json, or the divided model, FILE.xml.")
    ],
    devices: Devices = None,
    partition_cpu: PartitionCpu = None,
    shares: Annotated[
        str | None, Option("--shares", help="The share of each device: 0.6,0.4. Default: equal ones.")
    ] = None,
    scheme: Annotated[
        list[str] | None,
        Option(
            "--scheme", metavar="SCHEME", help="rows, hidden, heads, channels or columns. Repeatable. Default: all."
        ),
    ] = None,
    problem: Annotated[
        bool, Option("--problem", help="Profile the devices, and write the divided model as a problem for solve.")
    ] = False,
    shape: Shape = None,
    as_json: Json = False,
) -> None:
    """Divide a model over devices as far as its ops allow. What that gains is not measured."""
    from hsdag.exports.base import export_placement
    from hsdag.ir.errors import OptionError
    from hsdag.ir.graph.reader import input_shapes
    from hsdag.placing.by_hand import ShardResult, divide, sharded_problem
    from hsdag.runtime.problem.problem_file import write_problem

    formats = {".json": "json", ".xml": "ir"}
    if output.suffix not in formats:
        raise OptionError(f"--output {output} ends in neither .json (a placement) nor .xml (the divided model)")
    if problem and output.suffix != ".json":
        raise OptionError(f"--output {output} does not end in .json: --problem writes a problem file")
    check_files([output], model_files(model))
    loaded, placement = divide(model, devices, partition_cpu, shares, scheme or (), input_shapes(shape))
    if problem:
        write_problem(sharded_problem(model, loaded, placement, input_shapes(shape)), output)
        files = [output]
    else:
        files = export_placement(placement, formats[output.suffix], output, loaded)
    result = ShardResult(files=tuple(files), regions=placement.shards or ())
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    rows = []
    for each in result.regions:
        shares = ", ".join(f"{name} {first}..{last}" for name, (first, last) in each.shares.items())
        rows.append([each.scheme, str(len(each.ops)), placement.name_of(each.ops[-1]), shares])
    print_table(None, ["scheme", "ops", "up to", "shares"], rows)
    typer.echo(f"wrote {' and '.join(map(str, result.files))}")
