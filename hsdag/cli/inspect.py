"""Commands ``hsdag inspect`` and ``hsdag devices``: describe a model's graph and the devices of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from hsdag.cli.options import DataShape, Devices, Json, Model, Shape, Tokens
from hsdag.cli.output import print_json, print_table

if TYPE_CHECKING:
    from hsdag.commands.inspect import ShardBound

COMMANDS = ("inspect", "devices")

MOST_LEFT = 5
"""Name at most this many kinds of ops that are not divided."""


def inspect(
    model: Model,
    shape: Shape = None,
    data_shapes: DataShape = None,
    tokens: Tokens = None,
    devices: Devices = None,
    as_json: Json = False,
) -> None:
    """Print a model's inputs, outputs, ops and sizes. Also ops that devices do not run, and gains of sharding."""
    from hsdag.commands.inspect import ASK_DEVICES_UP_TO
    from hsdag.commands.inspect import inspect as run_inspect

    result = run_inspect(model, shape=shape, data_shape=data_shapes or (), tokens=tokens, devices=devices)
    is_known = bool(result.data_shapes) or not result.dynamic_inputs
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    typer.echo(f"{result.name}  {result.fingerprint}")
    typer.echo(
        f"{result.nodes} ops, {result.edges} edges, mean degree {result.mean_degree:.2f}, "
        f"{f'{result.flops / 1e9:.4g} GFLOP' if is_known else 'sizes are open, so FLOP are not known'}, "
        f"{result.weight_bytes / 1e6:.4g} MB of weights"
    )
    ports = [("input", port) for port in result.inputs] + [("output", port) for port in result.outputs]
    print_table(None, ["", "name", "type", "shape"], [[way, port.name, port.type, port.shape] for way, port in ports])
    stages = [[n.replace("_", " "), str(size.nodes), str(size.edges)] for n, size in result.coarsening.items()]
    print_table(None, ["coarsening", "units", "edges"], stages)
    print_table(None, ["op type", "ops"], [[t, str(n)] for t, n in result.op_histogram.items()])
    if result.data_shapes:
        typer.echo("Sizes are those with the shapes of data: FLOPs are means, and weights include the largest state.")
    elif result.dynamic_inputs:
        typer.echo("Sizes are open: --shape, --data-shape or --tokens give them.")
    if result.unsupported is None and is_known:
        typer.echo(f"Devices were not queried: the model has over {ASK_DEVICES_UP_TO} ops; name them with --devices.")
    for device, ops in (result.unsupported or {}).items():
        examples = f", for example {', '.join(ops[:3])}" if ops else ""
        typer.echo(f"{device} does not run {len(ops)} of the ops{examples}." if ops else f"{device} runs every op.")
    if result.shards is not None:
        _print_shards(result.shards)


def _print_shards(bound: ShardBound) -> None:
    """Print which regions devices could compute together, what that could gain, and why other ops cannot be divided."""
    columns = ["scheme", "ops", "up to", "alone ms", "divided at best", "syncs", "pays by itself"]
    rows = []
    for region in bound.regions:
        times = [f"{1e3 * s:.3g}" for s in (region.whole_s, region.bound_s, region.sync_s)]
        pays = "yes" if region.pays else "no: syncs and slow-downs take more than it saves"
        rows.append([region.scheme, str(region.ops), region.last, *times, pays])
    if rows:
        print_table("what devices could compute together", columns, rows)
    for what, share in list(bound.left.items())[:MOST_LEFT]:
        typer.echo(f"{share:.1%} of the time is {what}: not divided")
    best = "no way to divide it is predicted to be faster than one device"
    if bound.predicted_s is not None:
        best = f"the best way found is predicted to take {bound.predicted_s / bound.whole_s:.2f} (simulated)"
    least = f"{bound.bound_s / bound.whole_s:.2f}"
    typer.echo(
        f"One device takes {1e3 * bound.whole_s:.3g} ms; all together would take {least} of that without syncs, and if "
        f"they were not {bound.slowdown:.2f} times as slow side by side; {best}."
    )


def devices(as_json: Json = False) -> None:
    """List the devices of this machine, and into how many the CPU can be divided."""
    from hsdag.commands.inspect import devices as present_devices

    result = present_devices()
    if as_json:
        print_json(result.model_dump(mode="json"))
        return
    rows = [[i.name, i.full_name or f"does not load: {i.failure}", " ".join(i.capabilities)] for i in result.openvino]
    rows += [[g.name, f"{g.full_name}, {g.memory_bytes / 1e9:.0f} GB", "CUDA"] for g in result.cuda]
    print_table(None, ["device", "what it is", "capabilities"], rows)
    cpu, threads = result.cpu, result.cpu.max_partitions
    if threads:
        kinds = f" ({cpu.performance_threads} on performance, {cpu.efficiency_threads} on efficiency cores)"
        of = kinds if cpu.efficiency_threads else ""
        typer.echo(f"The CPU's {threads} threads{of} can be divided: --partition-cpu N, N up to {threads}.")
