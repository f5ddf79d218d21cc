"""Check the torch engine on this machine (``hsdag doctor --cuda``) with one model, one fault and one copy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import openvino as ov
from pydantic import computed_field

from hsdag.base.errors import ExecutionError, HsdagError
from hsdag.base.processes import CandidateFailed, WorkerDefect
from hsdag.base.version import __version__
from hsdag.commands.place.session import TORCH_WORKER_COMMAND
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.placement.placement import Record
from hsdag.models import build_model
from hsdag.runtime.machine.devices import PRECISION, list_cuda
from hsdag.runtime.measuring.measurer import TorchMeasurer
from hsdag.runtime.measuring.messages import Call, Candidate, Probe, WorkerSetup, ask, worker_client
from hsdag.runtime.torch.devices import parse_torch_devices

MODEL = "tiny_inception"
BAR = 1e-4
"""Largest relative difference at which two f32 outputs count as equal."""

COPIED_BYTES, COPY_RUNS, COPY_S = 1 << 22, 9, 1.0
"""Bytes of a timed copy, the most copies to make, and the seconds after which to stop."""

LIMIT_S = 120.0
"""Seconds that one request of a check may take before it counts as hanging."""

LOGICAL = "A=cpu[threads=1],B=cpu[threads=1]"
"""Logical CPU devices to check on a machine without a CUDA device."""

LATE_S = 1e-6
"""Limit in seconds that every inference exceeds."""

A = TypeVar("A")


class Answer(Protocol):
    """Function that returns the answer of the engine's worker to a request."""

    def __call__(self, request: Call[A], /) -> A: ...


@dataclass(frozen=True)
class Item:
    """Outcome of one check; ``detail`` says what was found, or why it failed."""

    name: str
    passed: bool
    detail: str


class CudaReport(Record):
    """Outcomes of all checks; ``devices`` are those checked, ``machine`` lists versions and GPUs."""

    devices: tuple[str, ...]
    machine: dict[str, str]
    is_on_gpu: bool
    items: tuple[Item, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """Return the outcome in one sentence."""
        passed = sum(item.passed for item in self.items)
        outcome = f"{passed} of {len(self.items)} checks on {', '.join(self.devices)} passed."
        if self.is_on_gpu:
            return outcome
        return f"{outcome} There is no CUDA device among them: the CPU stood in, whose figures say nothing of a GPU."


def check_cuda(
    devices: str | None = None,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    limit_s: float = LIMIT_S,
    command: Sequence[str] = TORCH_WORKER_COMMAND,
) -> CudaReport:
    """Check the torch engine on devices given as for ``--devices``, by default on all CUDA devices.

    Without a CUDA device, two logical devices of the CPU are checked instead. The engine runs in a separate process, so
    a check that fails, crashes or hangs does not stop the others. Raises DeviceError for devices that are absent or not
    torch's.

    Args:
        limit_s: Seconds that one request may take.
        command: Command that starts the worker process.
    """
    present = list_cuda()
    specs = parse_torch_devices(devices if devices is not None or present else LOGICAL)
    machine = {"hsdag": __version__} | {package: version(package) for package in ("torch", "openvino")}
    gpus = {gpu.name: gpu.full_name for gpu in present if gpu.name in {spec.plugin for spec in specs}}
    items = []
    with (
        tempfile.TemporaryDirectory(prefix="hsdag-") as folder,
        worker_client(setup_of(specs, Path(folder)), command) as client,
    ):
        for name, check in CHECKS.items():
            on_step(f"checking {name}")
            try:
                detail = check(partial(client.call, limit_s=limit_s), specs)
            except (CandidateFailed, HsdagError, WorkerDefect) as failure:
                client.restart()  # so that the next check starts from a clean process
                items.append(Item(name, False, " ".join(str(failure).split())))
            else:
                items.append(Item(name, True, detail))
    names = DeviceIndex.of(specs).names
    return CudaReport(devices=names, machine=machine | gpus, is_on_gpu=bool(gpus), items=tuple(items))


def setup_of(specs: Sequence[DeviceSpec], folder: Path) -> WorkerSetup:
    """Write the model to a folder; return the worker's setup for it and the devices."""
    ov.save_model(build_model(MODEL), folder / f"{MODEL}.xml", compress_to_fp16=False)
    return WorkerSetup(folder / f"{MODEL}.xml", tuple(specs))


def check_zoo_model(answer: Answer, specs: Sequence[DeviceSpec]) -> str:
    """Check that a zoo model with randomly placed ops computes what OpenVINO's CPU device does."""
    names = [spec.openvino_name for spec in specs]
    num_ops = len(answer(ask(TorchMeasurer.choices, names[0])))
    drawn = np.random.default_rng(0).integers(0, len(names), num_ops).tolist()
    placed = Candidate(",".join(names), tuple(names[d] for d in drawn), executor="cuda")
    answer(ask(TorchMeasurer.open, "placed", placed))
    reference = Candidate("CPU", properties={PRECISION: "f32"})
    answer(ask(TorchMeasurer.open, "reference", reference))
    gap = answer(ask(TorchMeasurer.difference, "placed", "reference"))["max_relative"]
    if gap is None or gap > BAR:
        by = "values that are not finite" if gap is None else f"{gap:.1e}"
        raise ExecutionError(f"outputs of {MODEL}, placed at random, differ from OpenVINO's by {by}")
    return f"{num_ops} ops of {MODEL} placed at random, largest relative difference {gap:.1e}"


def check_fault(answer: Answer, specs: Sequence[DeviceSpec]) -> str:
    """Check that an inference over its time limit is abandoned and its device named, and that later ones are right."""
    for spec in specs:
        message = "nothing"
        try:
            answer(ask(TorchMeasurer.open, "late", Candidate(spec.openvino_name), LATE_S))
        except (CandidateFailed, ExecutionError) as error:
            message = str(error)
        if f"took more than {LATE_S:g} s" not in message:
            raise ExecutionError(f"that an inference on {spec.name} takes too long is reported as: {message}")
    check_zoo_model(answer, specs)
    return "an inference that takes too long is given up, and what runs next is right"


def check_copy(answer: Answer, specs: Sequence[DeviceSpec]) -> str:
    """Check that the last device receives what the first one sent."""
    source, destination = specs[0], specs[-1]
    if source == destination:
        return f"{source.name} is the only device"
    ends = source.openvino_name, destination.openvino_name
    sent = Probe(ends, "matrix", 1, COPIED_BYTES, COPY_RUNS, COPY_S)
    copied = answer(ask(TorchMeasurer.probe, sent))
    rate = COPIED_BYTES / max(copied.rest_s, 1e-9) / 1e9
    return f"{source.name} to {destination.name}: {COPIED_BYTES:,} bytes arrive as sent, {rate:.1f} GB/s"


CHECKS: dict[str, Callable[[Answer, Sequence[DeviceSpec]], str]] = {
    "model": check_zoo_model,
    "fault": check_fault,
    "copy": check_copy,
}
"""Checks by name; each returns what it found, and raises ExecutionError if it fails."""
