"""``hsdag profile``: measured times of ops, launches and transfers, as a problem file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag.cli.files import check_not_model, check_writable
from hsdag.cli.options import Devices, Inputs, Json, Model, PartitionCpu, Shape
from hsdag.cli.output import milliseconds, print_json, print_table, say

if TYPE_CHECKING:
    from hsdag.commands.profile import ProfileResult


def profile(
    model: Model,
    output: Path | None = typer.Option(None, "--output", "-o", help="The problem file. Default: MODEL.costs.json."),
    devices: Devices = None,
    partition_cpu: PartitionCpu = None,
    platform: str | None = typer.Option(
        None, "--platform", help="Instead of measuring: analytic costs of a platform, by name or as a .toml file."
    ),
    cuts: int = typer.Option(6, "--cuts", min=0, help="Random placements measured to calibrate launches and links."),
    fresh: bool = typer.Option(False, "--fresh", help="Measure again and ignore the cache."),
    seed: int = typer.Option(0, "--seed", help="Seed of the cuts and of random inputs."),
    shape: Shape = None,
    inputs: Inputs = None,
    as_json: Json = False,
) -> None:
    """Measure every op on every device, and launches and transfers between devices."""
    from hsdag.commands.profile import run_profile
    from hsdag.ir import OptionError
    from hsdag.ir.reader import check_model_path
    from hsdag.runtime.platforms.devices import resolve_devices
    from hsdag.runtime.problems.problem_file import write_problem
    from hsdag.runtime.profiling.profile_cache import ProfileCache
    from hsdag.search.options import input_shapes

    check_model_path(model)
    written = output or model.with_suffix(".costs.json")
    check_writable(written)
    check_not_model((written,), model, inputs)
    if platform is not None:
        if devices is not None or partition_cpu is not None:
            raise OptionError("--platform brings its own devices: leave out --devices and --partition-cpu")
        _assume(model, platform, input_shapes(shape), written, as_json)
        return
    result = run_profile(
        model,
        resolve_devices(devices, partition_cpu),
        shapes=input_shapes(shape),
        inputs=inputs,
        seed=seed,
        cuts=cuts,
        cache=ProfileCache(None) if fresh else None,
        on_step=say,
    )
    write_problem(result.schedule, written)
    if as_json:
        print_json({"costs": str(written), **_document(result)})
    else:
        _show(result, written)


def _assume(model: Path, platform: str, shapes: Mapping[str, tuple[int, ...]], written: Path, as_json: bool) -> None:
    """Write the costs that a platform's data sheets and calibration give; nothing is measured."""
    from hsdag.commands.profile import assumed_costs
    from hsdag.runtime.platforms import load_platform
    from hsdag.runtime.problems.problem_file import write_problem

    problem = assumed_costs(model, load_platform(platform), shapes)
    write_problem(problem, written)
    if as_json:
        names = list(problem.device_names)
        print_json({"costs": str(written), "source": problem.source.value, "devices": names, "ops": problem.num_ops})
        return
    kind = problem.source.value
    typer.echo(
        f"{problem.num_ops} ops on {', '.join(problem.device_names)}: {kind} costs of {platform}, nothing measured"
    )
    typer.echo(f"The costs are in {written}; hsdag solve and hsdag simulate read them.")


def _document(result: ProfileResult) -> dict[str, Any]:
    costs, known = result.costs.costs, [s for s in result.measured_s.tolist() if s == s]
    return {
        "source": costs.source.value,
        "devices": [
            {
                "name": spec.name,
                "latency_s": times.latency_s,
                "spread": times.spread,
                "runs": times.runs,
                "resident_bytes": times.resident_bytes,
                "memory_bytes": times.memory_bytes,
                "launch_s": launch_s,
                "unsupported_ops": int((times.time_s != times.time_s).sum()),
            }
            for spec, times, launch_s in zip(
                result.profile.devices, result.profile.times, costs.launch_s.tolist(), strict=True
            )
        ],
        "links": {
            "latency_s": costs.link_latency_s.tolist(),
            "bandwidth_bytes_per_s": costs.link_bandwidth_bytes_per_s.tolist(),
        },
        "ops": result.graph.num_ops,
        "units": result.problem.num_units,
        "cuts_measured": len(known),
    }


def _show(result: ProfileResult, written: Path) -> None:
    document = _document(result)
    rows = [
        [
            device["name"],
            milliseconds(device["latency_s"]) if device["latency_s"] is not None else "-",
            f"{100 * device['spread']:.1f}%",
            str(device["runs"]),
            f"{1e6 * device['launch_s']:.3g}",
            f"{device['resident_bytes'] / 1e6:.0f}",
            f"{device['memory_bytes'] / 1e9:.1f}" if device["memory_bytes"] is not None else "-",
            str(device["unsupported_ops"]),
        ]
        for device in document["devices"]
    ]
    columns = ["device", "model ms", "spread", "runs", "launch us", "resident MB", "memory GB", "unsupported ops"]
    print_table(None, columns, rows)
    names, links = [device["name"] for device in document["devices"]], document["links"]
    pairs = [(a, b) for a in range(len(names)) for b in range(len(names)) if a != b]
    cells = [
        [
            f"{names[a]} -> {names[b]}",
            f"{1e6 * links['latency_s'][a][b]:.3g}",
            f"{links['bandwidth_bytes_per_s'][a][b] / 1e9:.3g}",
        ]
        for a, b in pairs
    ]
    if cells:
        print_table(None, ["link", "latency us", "GB/s"], cells)
    calibrated = f", launches and links calibrated on {document['cuts_measured']} cuts" if cells else ""
    typer.echo(f"{document['ops']} ops in {document['units']} placement units{calibrated}")
    typer.echo(f"The costs are in {written}; hsdag solve and hsdag simulate read them.")
