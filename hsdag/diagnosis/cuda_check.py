"""``hsdag doctor --cuda``: whether the torch engine is right here, over one model, one fault and one copy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import openvino as ov
import torch
from pydantic import computed_field

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import ExecutionError, HsdagError
from hsdag.ir.graph.reader import input_name
from hsdag.ir.placement.placement import Record
from hsdag.ir.processes import CandidateFailed, Request, WorkerDefect, main
from hsdag.models import build_model, find_model
from hsdag.runtime.machine.devices import list_cuda
from hsdag.runtime.measuring.messages import worker_client
from hsdag.runtime.torch import (
    Feed,
    LogicalDevice,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    allow_tf32,
    build_program,
    openvino_graph,
)
from hsdag.runtime.torch.devices import logical_device, parse_torch_devices
from hsdag.version import __version__

MODEL = "tiny_inception"
BAR = 1e-4
"""Relative difference up to which outputs in f32 count as the same."""

COPIED = 1 << 22
"""Bytes of a timed copy."""

LIMIT_S = 120.0
"""How long one check may take before it counts as hanging."""

LOGICAL = "A=cpu[threads=1],B=cpu[threads=1]"
"""What stands in where there is no CUDA device."""

WORKER = (sys.executable, "-m", "hsdag.diagnosis.cuda_check")


@dataclass(frozen=True)
class DeviceSetup(Request[None]):
    """The first request to the process: the devices to check."""

    devices: tuple[DeviceSpec, ...]


@dataclass(frozen=True)
class Check(Request[str]):
    """Make the check of this name; what it found in words."""

    name: str


@dataclass(frozen=True)
class Item:
    """One check: whether it passed, what it found or why it failed, and the seconds that it took."""

    name: str
    passed: bool
    detail: str
    seconds: float


class CudaReport(Record):
    """All checks in order; ``devices`` are the ones that they ran on, ``machine`` says what is installed here."""

    devices: tuple[str, ...]
    machine: dict[str, str]
    is_on_gpu: bool
    items: tuple[Item, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """The outcome in one sentence."""
        passed = sum(item.passed for item in self.items)
        outcome = f"{passed} of {len(self.items)} checks on {', '.join(self.devices)} passed."
        if self.is_on_gpu:
            return outcome
        return f"{outcome} There is no CUDA device among them: the CPU stood in, whose figures say nothing of a GPU."

    def text(self) -> str:
        """The report for a terminal: one line for each check, what is installed, and the outcome."""
        width = max(len(item.name) for item in self.items)
        lines = [f"{item.name:<{width}}  {'pass' if item.passed else 'FAIL'}  {item.detail}" for item in self.items]
        machine = ", ".join(f"{name} {what}" for name, what in self.machine.items())
        return "\n".join([*lines, machine, self.sentence])


def check_cuda(
    devices: str | None = None,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    limit_s: float = LIMIT_S,
    command: Sequence[str] = WORKER,
) -> CudaReport:
    """Check the torch engine on ``devices`` as ``--devices`` takes them, by default all CUDA devices.

    Where there is none, two logical devices of the CPU stand in. A check that fails, crashes or takes more than
    ``limit_s`` ends no other: they are made in a process of their own. Raises DeviceError for devices that are not
    here, or are no torch devices.
    """
    found = list_cuda()
    specs = parse_torch_devices(devices if devices is not None or found else LOGICAL)
    machine = {"hsdag": __version__} | {package: version(package) for package in ("torch", "openvino")}
    gpus = {each.name: each.full_name for each in found if each.name in {spec.plugin for spec in specs}}
    items = []
    with worker_client(DeviceSetup(specs), command) as client:
        for name in CHECKS:
            on_step(f"checking {name}")
            begin_s, passed = time.perf_counter(), True
            try:
                detail = client.call(Check(name), limit_s)
            except (CandidateFailed, HsdagError, WorkerDefect) as failure:
                client.restart()  # whatever it left behind does not spoil the next check
                passed, detail = False, " ".join(str(failure).split())
            items.append(Item(name, passed, detail, time.perf_counter() - begin_s))
    names = tuple(spec.name for spec in specs)
    return CudaReport(devices=names, machine=machine | gpus, is_on_gpu=bool(gpus), items=tuple(items))


def check_model(devices: Sequence[LogicalDevice]) -> str:
    """A model of the zoo whose ops are placed at random computes what OpenVINO's CPU device computes."""
    model, rng = build_model(MODEL), np.random.default_rng(0)
    arrays = [rng.standard_normal(given.shape, dtype=np.float32) for given in find_model(MODEL).inputs]
    wanted = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(arrays)
    graph = openvino_graph(model)
    placement = rng.integers(0, len(devices), graph.num_nodes)
    with TorchExecutor(build_program(graph, placement, devices)) as executor:
        got = executor.infer(dict(zip(map(input_name, model.inputs), arrays, strict=True)), limit_s=LIMIT_S)
    pairs = [(x.cpu().numpy(), wanted[k]) for k, x in enumerate(got.values())]
    worst = max(float(np.abs(x - expected).max() / np.abs(expected).max()) for x, expected in pairs)
    if not worst <= BAR:
        raise ExecutionError(f"outputs of {MODEL}, placed at random, differ from OpenVINO's by {worst:.1e}")
    return f"{graph.num_nodes} ops of {MODEL} placed at random, largest relative difference {worst:.1e}"


def check_fault(devices: Sequence[LogicalDevice]) -> str:
    """On each device, an op that raises is named with its device, and the next inference is right."""
    for device in devices:
        faults: list[Exception] = [RuntimeError("on purpose")]

        def run(xs: Sequence[torch.Tensor], faults: list[Exception] = faults) -> tuple[torch.Tensor, ...]:
            if faults:
                raise faults.pop()
            return (xs[0] + 1,)

        nodes = (TorchNode("x", feed=Feed("x", torch.float32, (64,))), TorchNode("odd op", "Add", ((0, 0),), run))
        with TorchExecutor(build_program(TorchGraph("fault", nodes, {"y": (1, 0)}), [0, 0], [device])) as executor:
            try:
                executor.infer({"x": np.ones(64, dtype=np.float32)}, limit_s=LIMIT_S)
                message = "nothing"
            except ExecutionError as error:
                message = " ".join(str(error).split())
            if not all(word in message for word in ("odd op", device.name, "on purpose")):
                raise ExecutionError(f"an op that raises on {device.name} is reported as: {message}")
            if executor.infer(limit_s=LIMIT_S)["y"].cpu().tolist() != [2.0] * 64:
                raise ExecutionError(f"after an op that raised on {device.name}, the next inference is wrong")
    return "an op that raises ends its own inference alone, and is named"


def check_copy(devices: Sequence[LogicalDevice]) -> str:
    """What arrives on the last device is what the first one sent."""
    source, destination = devices[0], devices[-1]
    sent = TorchNode("sent", feed=Feed("sent", torch.uint8, (COPIED,)), output_bytes=(float(COPIED),))
    read = TorchNode("read", "Add", ((0, 0),), lambda xs: (xs[0] + 1,))
    graph, pair = TorchGraph("copy", (sent, read), {"y": (1, 0)}), dict.fromkeys((source, destination))
    given = np.random.default_rng(0).integers(0, 256, COPIED, dtype=np.uint8)
    with TorchExecutor(build_program(graph, [0, len(pair) - 1], list(pair))) as executor:
        arrived = executor.infer({"sent": given}, limit_s=LIMIT_S)["y"].cpu().numpy()
        if not np.array_equal(arrived, given + np.uint8(1)):
            raise ExecutionError(f"a copy from {source.name} to {destination.name} is damaged")
        request = executor.submit(LIMIT_S)
        request.wait()
    copy = request.timeline.transfers
    if not len(copy.end_s):
        return f"{source.name} is the only device"
    rate = COPIED / max(float((copy.end_s - copy.start_s).sum()), 1e-9) / 1e9
    return f"{source.name} to {destination.name}: {COPIED:,} bytes arrive as sent, {rate:.1f} GB/s"


CHECKS: dict[str, Callable[[Sequence[LogicalDevice]], str]] = {
    "model": check_model,
    "fault": check_fault,
    "copy": check_copy,
}
"""By name; each returns what it found, and raises ExecutionError where it fails."""


class Checker:
    """Makes one check after another on the same devices."""

    def __init__(self, setup: DeviceSetup) -> None:
        allow_tf32(False)
        self._devices = [logical_device(spec) for spec in setup.devices]

    def handle(self, request: Check) -> str:
        """What a check found. What it raises beside ExecutionError is a defect, which the client reports."""
        return CHECKS[request.name](self._devices)


if __name__ == "__main__":
    main(lambda setup, _: Checker(setup))
