"""Commands ``hsdag doctor`` and ``hsdag bisect``: find out what is wrong on this machine or with a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hsdag.cli.options import DataShape, Devices, Inputs, Json, Model, PartitionCpu, Shape, Tokens
from hsdag.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from hsdag.commands.bisect import Bisection
    from hsdag.commands.doctor.examination import Examination
    from hsdag.commands.doctor.model import ModelReport

COMMANDS = ("doctor", "bisect")


def doctor(
    model: Annotated[
        Path | None,
        typer.Argument(help="A model file or folder to examine on the devices."),
    ] = None,
    devices: Devices = None,
    partition_cpu: PartitionCpu = None,
    shape: Shape = None,
    data_shapes: DataShape = None,
    tokens: Tokens = None,
    cuda: bool = typer.Option(
        False, "--cuda", help="Check the CUDA engine instead, on --devices cuda:0,..., by default on all GPUs."
    ),
    budget: str | None = typer.Option(
        None, "--budget", help="Time limit for everything that compiles: 60s, 5m. Default: 60s."
    ),
    as_json: Json = False,
) -> None:
    """Examine the devices and what HETERO does with a model. Checks that devices compute correctly and can overlap."""
    from hsdag.base.errors import OptionError

    if cuda:
        from hsdag.commands.doctor.cuda_check import check_cuda

        others = [model, partition_cpu, shape, data_shapes, tokens, budget]
        names = [str(model), "--partition-cpu", "--shape", "--data-shape", "--tokens", "--budget"]
        superfluous = [name for name, other in zip(names, others, strict=True) if other is not None]
        if superfluous:
            raise OptionError(f"--cuda checks the engine itself: leave out {', '.join(superfluous)}")
        report = check_cuda(devices, on_step=say)
        if as_json:
            print_json(report.model_dump(mode="json"))
            return
        rows = [[item.name, "pass" if item.passed else "FAIL", item.detail] for item in report.items]
        print_table(None, ["check", "", "detail"], rows)
        typer.echo(", ".join(f"{name} {what}" for name, what in report.machine.items()))
        typer.echo(report.sentence)
        return
    from hsdag.commands.doctor.examination import examine
    from hsdag.ir.graph.reader import check_model_path

    if model is not None:
        check_model_path(model)
    examination = examine(
        model,
        devices,
        partition_cpu,
        shape=shape,
        data_shape=data_shapes or (),
        tokens=tokens,
        budget=budget or "60s",
        on_step=say,
    )
    print_json(examination.model_dump(mode="json")) if as_json else _show(examination)


def _show(examination: Examination) -> None:
    """Print the findings of an examination."""
    host = examination.host
    memory = f"{host.memory_bytes / 1e9:.1f} GB of memory, {host.usable_memory_bytes / 1e9:.1f} of it free"
    typer.echo(f"OpenVINO {examination.openvino}; {host.threads} threads of the CPU, {memory}")
    _show_devices(examination)
    if examination.absent:
        print_table("devices that are not there", ["plugin", "why"], [[*item] for item in examination.absent.items()])
    if examination.pairs:
        rows = []
        for pair in examination.pairs:
            gains = [f"{pair.gains[kind]:.2f}" if kind in pair.gains else "-" for kind in ("compute", "memory")]
            rows.append([" and ".join(pair.names), *gains])
        print_table(None, ["pair", "compute at once", "memory at once"], rows)
    if examination.model is not None:
        _show_model(examination.model)
    if examination.genai:
        rows = [[name, "works" if why is None else f"no: {why}"] for name, why in examination.genai.items()]
        print_table(None, ["in OpenVINO GenAI", "with a placement"], rows)
    typer.echo(str(examination))


def _show_devices(examination: Examination) -> None:
    """Print the table of devices."""
    rows = []
    for device in examination.devices:
        facts, precision = device.facts, device.outputs_of_a_small_network
        if facts is None:
            rows.append([device.name, "does not load", "-", "-", "-", "-"])
            continue
        memory = "-" if facts.memory_bytes is None else f"{facts.memory_bytes / 1e9:.1f}"
        driver = (precision.driver if precision is not None else None) or "-"
        gap = None if precision is None else precision.default["max_relative"]
        off = "-" if gap is None else f"{gap:.1g}"
        rows.append([device.name, facts.full_name, driver, memory, facts.precision or "-", off])
    print_table(None, ["device", "what it is", "driver", "memory GB", "precision", "off from f32"], rows)


def _show_model(report: ModelReport) -> None:
    """Print how HETERO would divide the model."""
    typer.echo(f"{report.name}: {report.ops} ops, {report.weight_bytes / 1e6:.4g} MB of weights")
    rows = []
    for choice in report.hetero:
        target = f"{choice.target} {choice.policy or ''}".strip()
        if choice.failure is not None:
            rows.append([target, "-", "does not compile", "-"])
            continue
        rows += [
            [target, device.name, str(device.ops), f"{device.weight_bytes / 1e6:.4g}"] for device in choice.devices
        ]
    if rows:
        print_table(None, ["HETERO would make", "device", "ops", "weights MB"], rows)


def bisect(
    model: Model,
    devices: Annotated[
        str,
        typer.Option("--devices", "-d", help="The two devices: CPU,GPU.0, or A=CPU[KEY=VALUE;...],B=CPU[...]."),
    ],
    max_difference: Annotated[
        float | None,
        typer.Option(
            "--max-difference",
            help="Largest allowed difference relative to a tensor's largest value. Default: as place.",
        ),
    ] = None,
    inputs: Inputs = None,
    shape: Shape = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of random inputs.")] = 0,
    as_json: Json = False,
) -> None:
    """Find the first op of a model at which two devices disagree. Cuts the model after one op at a time."""
    from hsdag.commands.bisect import bisect as run_bisect
    from hsdag.ir.device import parse_devices
    from hsdag.ir.graph.reader import input_shapes
    from hsdag.runtime.machine.devices import canonical

    specs = tuple(canonical(spec) for spec in parse_devices(devices))
    settings = {"max_difference": max_difference, "inputs": inputs, "seed": seed}
    bisection = run_bisect(model, specs, shapes=input_shapes(shape), on_step=say, **settings)  # type: ignore[arg-type]
    print_json(bisection.model_dump(mode="json")) if as_json else _show_bisection(bisection)


def _show_bisection(bisection: Bisection) -> None:
    """Print the ops that were compared, and the findings."""
    rows = []
    for probe in bisection.probes:
        apart = "-" if probe.difference is None else f"{probe.difference:.3g}"
        verdict = "did not run" if probe.failure is not None else "differs" if probe.differs else "agrees"
        rows.append([probe.op, probe.op_type, apart, verdict])
    if rows:
        print_table(None, ["up to op", "type", "relative difference", ""], rows)
    for sentence in bisection.sentences:
        typer.echo(sentence)
