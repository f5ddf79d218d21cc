"""Command ``hsdag bench``: measure latency and throughput of several candidates side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsdag.cli.options import DataShape, Inputs, Json, PartitionCpu, Shape, Tokens
from hsdag.cli.output import (
    check_files,
    megabytes,
    milliseconds,
    model_files,
    print_json,
    print_table,
    say,
    write_timeline,
)

if TYPE_CHECKING:
    from hsdag.commands.bench import BenchResult


def bench(
    model: Annotated[Path | None, typer.Argument(help="A model file, or a workload with --executor cuda.")] = None,
    model_option: Path | None = typer.Option(None, "-m", metavar="MODEL", help="The model, as in benchmark_app."),
    placement: list[Path] = typer.Option(
        [], "--placement", "-p", metavar="FILE", help="A placement file to measure. Repeatable."
    ),
    devices: list[str] = typer.Option(
        [],
        "--devices",
        "--device",
        "-d",
        metavar="DEVICES",
        help="Devices to measure one by one: CPU,GPU.0[KEY=VALUE;...], or a target: AUTO:CPU. Repeatable.",
    ),
    partition_cpu: PartitionCpu = None,
    executor: str | None = typer.Option(
        None,
        "--executor",
        help="What runs the placements: hetero, work-conserving or cuda (torch's devices). Default: what each names.",
    ),
    time: str | None = typer.Option(
        None, "--time", "-t", help="Total measuring time: 20s, 2m. Default: 20s, or what --niter inferences take."
    ),
    iterations: int | None = typer.Option(None, "--niter", "-niter", help="Number of inferences of each candidate."),
    hint: str | None = typer.Option(
        None,
        "--hint",
        "-hint",
        help="Performance hint: latency, throughput, cumulative_throughput or none. Default: the one that fits what is "
        "being measured.",
    ),
    requests: int | None = typer.Option(
        None, "--nireq", "-nireq", help="Requests in flight for throughput. Default: the device's optimal number."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of random inputs."),
    shape: Shape = None,
    data_shapes: DataShape = None,
    tokens: Tokens = None,
    inputs: Inputs = None,
    trace: Path | None = typer.Option(
        None, "--trace", metavar="FILE.json", help="Write a Chrome/Perfetto trace; only for a single candidate."
    ),
    as_json: Json = False,
) -> None:
    """Measure latency and throughput of candidates in common rounds. Most options are named as in benchmark_app."""
    from hsdag.base.errors import OptionError
    from hsdag.commands.bench import Tuning
    from hsdag.commands.bench import bench as run_bench

    if (model is None) == (model_option is None):
        raise OptionError("name the model once: hsdag bench MODEL, or hsdag bench -m MODEL")
    model = model or model_option
    assert model is not None
    check_files([trace], [*model_files(model, inputs), *placement])
    result = run_bench(
        model,
        placement,
        devices,
        partition_cpu=partition_cpu,
        executor=executor,
        time=time,
        tuning=Tuning(hint, requests, iterations),
        seed=seed,
        shape=shape,
        inputs=inputs,
        data_shape=data_shapes or (),
        tokens=tokens,
        with_timeline=trace is not None,
        on_step=say,
    )
    write_timeline(result.timeline, trace)
    print_json(result.model_dump(mode="json")) if as_json else _show(result)


def _show(result: BenchResult) -> None:
    """Print the tables of a measurement."""
    from hsdag.commands.place.tables import scenario_table

    columns, cells = result.table()
    for cell, row in zip(cells, result.rows, strict=True):
        memory = [megabytes(row.resident_bytes), megabytes(row.device_bytes)]
        cell += [str(row.submodels), f"{row.compile_s:.3g}", milliseconds(row.first_s), *memory]
    print_table(None, [*columns, "submodels", "compile s", "first ms", "process MB", "GPU MB"], cells)
    for name, reason in result.failures.items():
        typer.echo(f"{name} did not run: {reason}")
    for name, reason in result.in_flight_failures.items():
        typer.echo(f"{name} did not run with several requests in flight: {reason}")
    alone = len(result.scenarios) == 1
    medians_s = {row.name: (row.median_s,) if alone else row.scenario_medians_s for row in result.rows}
    columns, cells = scenario_table(result.scenarios, medians_s)
    if cells:
        print_table(None, columns, cells)
