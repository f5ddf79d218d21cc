"""The examination of a machine, and of a model on it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov
import psutil

from hsdag.commands.doctor.advice import next_commands, shape_options
from hsdag.commands.doctor.findings import Finding, Severity
from hsdag.commands.doctor.machine import Device, Pair, examined_device, examined_pairs, listed_devices
from hsdag.commands.doctor.model import ModelReport, examined_model
from hsdag.commands.doctor.questions import Questions
from hsdag.ir.reader import Shapes, load_model
from hsdag.ir.scenario import Scenario
from hsdag.runtime.measuring.messages import WORKER_COMMAND, WorkerSetup, worker_client
from hsdag.runtime.platforms.devices import cpu_topology, named_devices
from hsdag.runtime.platforms.usable import usable_memory_bytes


@dataclass(frozen=True, eq=False)
class Examination:
    """All that was found out; the gravest findings come first."""

    openvino: str
    threads: int
    memory_bytes: float
    usable_memory_bytes: float
    devices: tuple[Device, ...]
    pairs: tuple[Pair, ...]
    model: ModelReport | None
    findings: tuple[Finding, ...]
    next_commands: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The JSON answer of ``hsdag doctor``."""
        return {
            "openvino": self.openvino,
            "host": {
                "threads": self.threads,
                "memory_bytes": self.memory_bytes,
                "usable_memory_bytes": self.usable_memory_bytes,
            },
            "devices": [device.document() for device in self.devices],
            "pairs": [pair.document() for pair in self.pairs],
            "model": None if self.model is None else self.model.document(),
            "findings": [finding.document() for finding in self.findings],
            "next": list(self.next_commands),
        }


def examine(
    source: Any = None,
    devices: str | None = None,
    partition_cpu: int | None = None,
    *,
    shapes: Shapes | None = None,
    scenarios: Sequence[Scenario] = (),
    budget_s: float = 60.0,
    command: Sequence[str] = WORKER_COMMAND,
    on_step: Callable[[str], None] = lambda _: None,
) -> Examination:
    """Find out what is true on this machine, and what HETERO would do with a model, a file or an ``ov.Model``.

    Plugins run in a process of their own: one that crashes, hangs or fails is a finding. What compiles ends after
    ``budget_s`` seconds in all. A model of dynamic shapes is run on those of the ``scenarios``. Raises ModelError for a
    model that cannot be read, or does not take the shapes, DeviceError for a list of devices that is malformed.
    """
    own = source.clone() if isinstance(source, ov.Model) else source  # a caller's model is left as it is
    model = None if source is None else load_model(own, shapes, dynamic=True)
    typical = () if model is None else tuple(scenario.of(model) for scenario in scenarios)
    with ExitStack() as stack:
        path = None if source is None else _file_of(source, model, stack)
        setup = WorkerSetup(path, (), dict(shapes or {}), scenarios=typical)
        client = stack.enter_context(worker_client(setup, command))
        questions = Questions(client, budget_s, on_step)
        listed = sorted(listed_devices(questions), key=lambda name: name.startswith("CPU"))  # HETERO stays on a CPU
        named = named_devices(devices, partition_cpu, listed)
        asked = tuple(examined_device(questions, spec) for spec in named.placed)
        loaded = tuple(device for device in asked if device.facts is not None)
        pairs = examined_pairs(questions, [device.spec for device in loaded])
        report = None if model is None else examined_model(questions, model, typical, loaded)
    found = sorted(questions.findings, key=lambda finding: list(Severity).index(finding.severity))
    threads, memory = cpu_topology().threads, float(psutil.virtual_memory().total)
    given = shape_options(shapes or {}, scenarios)
    file = path if isinstance(source, str | Path) or source is None else Path("MODEL")
    commands = next_commands(file, report, [device.spec for device in loaded], partition_cpu, threads, given)
    return Examination(
        ov.get_version(), threads, memory, usable_memory_bytes(), asked, pairs, report, tuple(found), commands
    )


def _file_of(source: Any, model: Any, stack: ExitStack) -> Path:
    """A file with the model, which is written where there is none."""
    if isinstance(source, str | Path):
        return Path(source)
    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hsdag-"))) / "model.xml"
    ov.serialize(model, path)
    return path
