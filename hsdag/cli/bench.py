"""``hsdag bench``: latency and throughput, several candidates side by side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsdag.cli import completion
from hsdag.cli.files import check_files, model_files, write_timeline
from hsdag.cli.options import DataShapes, Devices, Inputs, Json, Shape, Tokens
from hsdag.cli.output import megabytes, milliseconds, print_json, print_table, say

if TYPE_CHECKING:
    from hsdag.commands.bench import BenchResult
    from hsdag.commands.per_op import OpReport
    from hsdag.ir import DeviceSpec

_TARGET = re.compile("(AUTO|HETERO|MULTI|BATCH)(:|$)")


def bench(
    model: Annotated[Path | None, typer.Argument(help="A model file, or a workload with --executor cuda.")] = None,
    model_option: Path | None = typer.Option(None, "-m", metavar="MODEL", help="The same, as benchmark_app has it."),
    placement: list[Path] = typer.Option([], "--placement", "-p", help="A placement file; may be repeated."),
    device: list[str] = typer.Option([], "--device", help="A device or target (CPU, AUTO:CPU); may be repeated."),
    devices: Devices = None,
    executor: str | None = typer.Option(
        None,
        "--executor",
        autocompletion=completion.executors,
        help="hetero, work-conserving or cuda (devices of torch's). Default: what placements name.",
    ),
    time: str | None = typer.Option(
        None, "--time", "-t", help="Total time to measure: 20s, 2m. Default: 20s, or as long as --niter takes."
    ),
    iterations: int | None = typer.Option(None, "--niter", "-niter", help="Inferences of each candidate."),
    hint: str | None = typer.Option(
        None,
        "--hint",
        "-hint",
        autocompletion=completion.hints,
        help="Performance hint: latency, throughput, cumulative_throughput or none. Default: what is measured.",
    ),
    requests: int | None = typer.Option(
        None, "--nireq", "-nireq", help="Requests in flight for throughput. Default: as many as the device asks for."
    ),
    streams: str | None = typer.Option(None, "--nstreams", "-nstreams", help="Streams: 4, or CPU:4,GPU:2."),
    threads: int | None = typer.Option(None, "--nthreads", "-nthreads", help="Threads of the CPU."),
    pinning: str | None = typer.Option(None, "--pinning", "-pin", help="Pin threads to cores: YES or NO."),
    precision: str | None = typer.Option(
        None, "--infer-precision", "-infer_precision", help="Precision to compute in: f32, or CPU:bf16,GPU:f16."
    ),
    cache_dir: Path | None = typer.Option(
        None, "--cache-dir", "-cdir", "-cache_dir", metavar="FOLDER", help="Keep compiled models there."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of random inputs."),
    shape: Shape = None,
    data_shapes: DataShapes = None,
    tokens: Tokens = None,
    inputs: Inputs = None,
    report_type: str | None = typer.Option(
        None,
        "--report-type",
        "-report_type",
        autocompletion=completion.reports,
        help="Write benchmark_app's files: no_counters, average_counters or detailed_counters.",
    ),
    report_folder: Path | None = typer.Option(
        None, "--report-folder", "-report_folder", metavar="FOLDER", help="Where to. Default: the current folder."
    ),
    json_stats: bool = typer.Option(False, "--json-stats", "-json_stats", help="Write them as JSON, not CSV."),
    per_op: bool = typer.Option(False, "--per-op", help="Report the heaviest ops and the best device for each."),
    fresh: bool = typer.Option(False, "--fresh", help="With --per-op: measure again and ignore the cache."),
    top: int = typer.Option(20, "--top", min=1, help="With --per-op: how many ops to list."),
    trace: Path | None = typer.Option(None, "--trace", help="Write a Chrome/Perfetto trace of a single candidate."),
    gantt: Path | None = typer.Option(None, "--gantt", help="Draw a single candidate's run: FILE.png or FILE.svg."),
    as_json: Json = False,
) -> None:
    """Measure latency and throughput of candidates that run in common rounds, in the manner of benchmark_app."""
    from hsdag.commands.bench import bench as run_bench
    from hsdag.commands.bench import runs_on_torch
    from hsdag.commands.counting import COUNTED_RUNS, check_report, write_reports
    from hsdag.commands.tuning import Tuning
    from hsdag.ir import OptionError, Placement
    from hsdag.search.options import parse_executor

    if (model is None) == (model_option is None):
        raise OptionError("name the model once: hsdag bench MODEL, or hsdag bench -m MODEL")
    model = model or model_option
    assert model is not None
    tuning = Tuning(hint, streams, threads, pinning, precision, cache_dir, requests, iterations)
    check_report(report_type, report_folder, json_stats=json_stats)
    engine = parse_executor(executor) if executor is not None else None
    if engine not in (None, "cuda") and not placement:
        raise OptionError("--executor chooses what runs a placement: name one with --placement")
    on_torch = runs_on_torch(engine, {str(path): Placement.load(path) for path in placement})
    named = _candidates(devices, device, on_torch=on_torch)
    if per_op:
        if on_torch or placement:
            raise OptionError("--per-op reports on OpenVINO's devices: leave out --executor cuda and --placement")
        if trace or gantt:
            raise OptionError("--per-op draws nothing: leave out --trace and --gantt")
        if tuning != Tuning() or report_type is not None:
            raise OptionError("--per-op profiles ops: leave out --niter, --hint, --report-type and the like")
        _per_op(model, named, shape, inputs, data_shapes, tokens, seed, fresh, top, as_json)
        return
    if (trace or gantt) and len(named) + len(placement) > 1:
        raise OptionError("--trace and --gantt show one run: name one --placement or one --device, and no target")
    check_files([trace, gantt], [*model_files(model, inputs), *placement], [gantt])
    result = run_bench(
        model,
        placement,
        named,
        executor=executor,
        time=time,
        tuning=tuning,
        counted_runs=COUNTED_RUNS if report_type in ("average_counters", "detailed_counters") else 0,
        seed=seed,
        shape=shape,
        inputs=inputs,
        data_shape=data_shapes or (),
        tokens=tokens,
        with_timeline=bool(trace or gantt),
    )
    write_timeline(result.timeline, trace, gantt)
    if report_type is not None:
        options: dict[str, object] = {"m": model, "t": time, "shape": shape, **tuning.given()}
        settings = {name: value for name, value in options.items() if value is not None}
        for path in write_reports(result, settings, report_type, report_folder or Path(), as_json=json_stats):
            say(f"wrote {path}")
    if as_json:
        print_json(result.document())
    else:
        _show(result)


def _candidates(devices: str | None, device: list[str], *, on_torch: bool) -> list[str | DeviceSpec]:
    """The devices and targets that are named."""
    from hsdag.ir.device import parse_devices, split_devices

    if devices is None:
        return [*device]
    if on_torch:
        return [*split_devices(devices), *device]
    return [devices, *device] if _TARGET.match(devices) else [*parse_devices(devices), *device]


def _per_op(
    model: Path,
    named: list[str | DeviceSpec],
    shape: str | None,
    inputs: Path | None,
    data_shapes: list[str] | None,
    tokens: str | None,
    seed: int,
    fresh: bool,
    top: int,
    as_json: bool,
) -> None:
    from hsdag.commands.bench import split_targets
    from hsdag.commands.per_op import run_per_op
    from hsdag.ir.errors import OptionError
    from hsdag.runtime.measuring.caches import ProfileCache
    from hsdag.search.options import input_scenarios, input_shapes

    specs, targets = split_targets(named, or_cpu=True)
    if targets:
        raise OptionError("--per-op reports on devices: leave out targets such as AUTO")
    cache, scenarios = ProfileCache(None) if fresh else None, input_scenarios(data_shapes or (), tokens)
    given: dict[str, Any] = {"shapes": input_shapes(shape), "inputs": inputs, "scenarios": scenarios, "seed": seed}
    _show_ops(run_per_op(model, specs, **given, cache=cache, on_step=say), top, as_json)


def _show(result: BenchResult) -> None:
    columns = ["candidate", "median ms", "mean ms", "p95 ms", "runs", f"x {result.versus}", "95% interval"]
    cells = [
        [
            row.name,
            milliseconds(row.latency.median_s),
            milliseconds(row.latency.mean_s),
            milliseconds(row.latency.p95_s),
            str(row.latency.runs),
            f"{row.ratio.value:.3f}",
            row.ratio.interval_text,
            f"{row.inferences_per_s:.4g}" if row.inferences_per_s is not None else "-",
            str(row.opened.submodels),
            f"{row.opened.compile_s:.3g}",
            milliseconds(row.opened.first_s),
            megabytes(row.opened.resident_bytes),
            megabytes(row.opened.device_bytes),
        ]
        for row in result.rows
    ]
    loading = ["compile s", "first ms", "process MB", "GPU MB"]
    print_table(None, [*columns, "inferences/s", "submodels", *loading], cells)
    _show_scenarios(result)
    for name, reason in result.failures.items():
        typer.echo(f"{name} did not run: {reason}")
    for name, reason in result.in_flight_failures.items():
        typer.echo(f"{name} did not run with several requests in flight: {reason}")


def _show_scenarios(result: BenchResult) -> None:
    """A row for each of several scenarios, and a column for each candidate."""
    if len(result.scenarios) > 1:
        from hsdag.ir.scenario import shares

        weights, rows = shares(result.scenarios), result.rows
        cells = [
            [
                each.tokens or each.text,
                f"{100 * weights[k]:.3g}%",
                *("-" if (s := row.scenarios[k]) is None else milliseconds(s) for row in rows),
            ]
            for k, each in enumerate(result.scenarios)
        ]
        print_table("medians by scenario, ms", ["scenario", "weight", *(row.name for row in rows)], cells)


def _show_ops(report: OpReport, top: int, as_json: bool) -> None:
    if as_json:
        print_json(report.document(top))
        return
    names = report.devices
    rows = [
        [
            row.name,
            row.op_type,
            str(row.num_ops),
            *("-" if s is None else milliseconds(s) for s in row.time_s),
            "-" if row.best is None else names[row.best],
            f"{100 * row.share:.1f}%",
        ]
        for row in report.rows[:top]
    ]
    columns = ["op", "type", "ops fused", *(f"{name} ms" for name in names), "best on", "share"]
    print_table(f"the {len(rows)} heaviest of {len(report.rows)}, each computed as one", columns, rows)
    cells = [
        [name, "-" if total_s is None else milliseconds(total_s), str(wins), milliseconds(saved_s)]
        for name, total_s, wins, saved_s in zip(names, report.total_s, report.wins, report.saved_s, strict=True)
    ]
    print_table(None, ["device", "all ops ms", "best for", "saves there ms"], cells)
