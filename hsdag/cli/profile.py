"""Command ``hsdag profile``: measure the times of ops, launches and transfers, and write them as a problem file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag.cli.options import DataShape, Devices, Inputs, Json, Model, PartitionCpu, Platform, Shape, Tokens
from hsdag.cli.output import check_files, megabytes, milliseconds, model_files, print_json, print_table, say

if TYPE_CHECKING:
    from hsdag.commands.profile import ProfileResult


def profile(
    model: Model,
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The problem file to write. Default: MODEL's name with .costs.json."
    ),
    devices: Devices = None,
    partition_cpu: PartitionCpu = None,
    platform: Platform = None,
    top: int = typer.Option(5, "--top", min=0, metavar="N", help="Show the N ops that take longest."),
    fresh: bool = typer.Option(False, "--fresh", help="Ignore cached profiles and measure again."),
    seed: int = typer.Option(0, "--seed", help="Seed of random inputs."),
    shape: Shape = None,
    data_shapes: DataShape = None,
    tokens: Tokens = None,
    inputs: Inputs = None,
    as_json: Json = False,
) -> None:
    """Measure the time of every op on every device, of launches and of transfers."""
    from hsdag.base.errors import OptionError
    from hsdag.commands.profile import AssumedCosts, ProfileResult, platform_costs
    from hsdag.commands.profile import profile as measured_profile
    from hsdag.ir.graph.reader import check_model_path, input_shapes
    from hsdag.ir.graph.scenario import parse_scenarios
    from hsdag.runtime.platforms.platform import load_platform
    from hsdag.runtime.problem.problem_file import write_problem

    check_model_path(model)
    written = output or model.with_suffix(".costs.json")
    check_files([written], model_files(model, inputs))
    answer: ProfileResult | AssumedCosts
    if platform is None:
        of_model: dict[str, Any] = {"shape": shape, "data_shape": data_shapes or (), "tokens": tokens, "inputs": inputs}
        how: dict[str, Any] = {"seed": seed, "fresh": fresh, "on_step": say}
        answer = measured_profile(model, devices, partition_cpu=partition_cpu, **of_model, **how)
        problem = answer.schedule
        answer = answer.model_copy(update={"costs": str(written)})
    elif devices is not None or partition_cpu is not None:
        raise OptionError("--platform brings its own devices: leave out --devices and --partition-cpu")
    else:
        scenarios = parse_scenarios(data_shapes or (), tokens)
        problem = platform_costs(model, load_platform(platform), input_shapes(shape), scenarios)
        names = list(problem.device_names)
        answer = AssumedCosts(costs=str(written), source=problem.source.value, devices=names, ops=problem.num_ops)
    write_problem(problem, written)
    if as_json:
        print_json(answer.model_dump(mode="json"))
        return
    if isinstance(answer, ProfileResult):
        show_profile(answer, top)
    else:
        source = f"{answer.source} costs of {platform}, nothing measured"
        typer.echo(f"{problem.num_ops} ops on {', '.join(problem.device_names)}: {source}")
    typer.echo(f"The costs are in {written}; hsdag solve and hsdag simulate read them.")


def show_profile(result: ProfileResult, top: int) -> None:
    """Print a profile as tables, with its ``top`` heaviest ops."""
    rows = [
        [
            device.name,
            milliseconds(device.latency_s) if device.latency_s is not None else "-",
            f"{100 * device.spread:.1f}%",
            str(device.runs),
            f"{1e6 * device.launch_s:.3g}",
            f"{device.compile_s:.3g}",
            milliseconds(device.first_s),
            megabytes(device.resident_bytes),
            megabytes(device.device_bytes),
            f"{device.memory_bytes / 1e9:.1f}" if device.memory_bytes is not None else "-",
            str(device.unsupported_ops),
        ]
        for device in result.devices
    ]
    loading = ["compile s", "first ms", "process MB", "GPU MB", "memory GB"]
    print_table(None, ["device", "model ms", "spread", "runs", "launch us", *loading, "unsupported ops"], rows)
    if len(result.devices) > 1:
        _show_pairs(result)
    _show_heaviest(result, top)
    typer.echo(f"{result.ops} ops in {result.units} placement units")


def _show_pairs(result: ProfileResult) -> None:
    """Print the links between devices, and how many times longer each device takes while another is busy."""
    names = [device.name for device in result.devices]
    pairs = list(itertools.permutations(range(len(names)), 2))
    links = ((result.links.latency_s, 1e6), (result.links.bandwidth_bytes_per_s, 1e-9))
    cells = [[f"{names[a]} -> {names[b]}", *(_scaled(table[a][b], unit) for table, unit in links)] for a, b in pairs]
    print_table(None, ["link", "latency us", "GB/s"], cells)
    cells = [
        [f"{names[a]} beside {names[b]}", *(_scaled(table[a][b], 1, ".2f") for table in result.slowdown.values())]
        for a, b in pairs
    ]
    print_table(None, ["times as long as alone", *result.slowdown], cells)


def _show_heaviest(result: ProfileResult, top: int) -> None:
    """Print the ops that take longest, with fused ops as one, and what each device is best for."""
    names = [device.name for device in result.devices]
    cells = [
        [
            row.name,
            row.type,
            str(row.fused_ops),
            *(milliseconds(row.time_s[name]) if name in row.time_s else "-" for name in names),
            row.best or "-",
            f"{100 * row.share:.1f}%",
        ]
        for row in result.heaviest[:top]
    ]
    if cells:
        columns = ["op", "type", "ops fused", *(f"{name} ms" for name in names), "best on", "share"]
        print_table(f"the {len(cells)} heaviest of {len(result.heaviest)}, each computed as one", columns, cells)
        won = [[device.name, str(device.wins), milliseconds(device.saved_s)] for device in result.devices]
        print_table(None, ["device", "best for", "saves there ms"], won)


def _scaled(figure: float | None, factor: float, form: str = ".3g") -> str:
    return "-" if figure is None else format(factor * figure, form)
