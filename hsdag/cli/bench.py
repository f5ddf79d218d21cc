"""``hsdag bench``: latency and throughput, several candidates side by side."""

from __future__ import annotations

from pathlib import Path

import typer

from hsdag.cli.output import (
    DEVICES_OPTION,
    INPUT_OPTION,
    JSON_OPTION,
    SHAPE_OPTION,
    milliseconds,
    print_json,
    print_table,
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("bench")(bench)


def bench(
    model: Path = typer.Argument(help="A model file: OpenVINO IR, ONNX, or anything OpenVINO reads."),
    placement: list[Path] = typer.Option([], "--placement", "-p", help="A placement file; may be repeated."),
    device: list[str] = typer.Option([], "--device", help="A device or target (CPU, AUTO:CPU); may be repeated."),
    devices: str | None = DEVICES_OPTION,
    time: str = typer.Option("20s", "--time", "-t", help="How long to measure in all."),
    seed: int = typer.Option(0, "--seed", help="Seed of random inputs."),
    shape: str | None = SHAPE_OPTION,
    inputs: Path | None = INPUT_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure latency and throughput; all candidates run in turn, round by round."""
    from hsdag.ir import DeviceSpec, Placement, parse_devices, parse_shapes
    from hsdag.runtime.latency import Protocol
    from hsdag.search.bench import run_bench
    from hsdag.search.options import parse_duration

    limit_s = parse_duration(time, "--time")
    targets = [d for d in device if ":" in d or d in ("AUTO", "HETERO")]
    named = list(parse_devices(devices)) if devices else []
    named += [DeviceSpec.parse(d) for d in device if d not in targets]
    if not named and not placement and not targets:
        named = [DeviceSpec("CPU", "CPU")]
    result = run_bench(
        model,
        named,
        {str(path): Placement.load(path) for path in placement},
        shapes=parse_shapes(shape) if shape else {},
        inputs=inputs,
        seed=seed,
        protocol=Protocol(limit_s=limit_s, max_rounds=100_000, interval_width=0.0, hopeless=0.0),
        targets=targets,
    )
    if as_json:
        rows = [
            {
                "name": row.name,
                **row.latency.model_dump(),
                "ratio": row.ratio.value,
                "ci95": [row.ratio.low, row.ratio.high],
                "inferences_per_s": row.inferences_per_s,
                "submodels": row.submodels,
            }
            for row in result.rows
        ]
        print_json({"versus": result.versus, "rows": rows, "failures": dict(result.failures)})
        return
    columns = ["candidate", "median ms", "mean ms", "p95 ms", "runs", f"x {result.versus}", "95% interval"]
    cells = [
        [
            row.name,
            milliseconds(row.latency.median_s),
            milliseconds(row.latency.mean_s),
            milliseconds(row.latency.p95_s),
            str(row.latency.runs),
            f"{row.ratio.value:.3f}",
            f"{row.ratio.low:.3f}..{row.ratio.high:.3f}",
            f"{row.inferences_per_s:.4g}" if row.inferences_per_s is not None else "-",
            str(row.submodels),
        ]
        for row in result.rows
    ]
    print_table(None, [*columns, "inferences/s", "submodels"], cells)
    for name, reason in result.failures.items():
        typer.echo(f"{name} did not run: {reason}")
