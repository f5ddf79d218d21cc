"""Examine a machine, and a model on it (``hsdag doctor``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
from pydantic import Field

from hsdag.base.errors import checked, flag
from hsdag.base.host import command_line
from hsdag.commands.doctor.absent import absent_devices
from hsdag.commands.doctor.findings import Finding, Questions, Severity, of_overlap, of_precision
from hsdag.commands.doctor.genai import genai_features
from hsdag.commands.doctor.model import ModelReport, examined_model
from hsdag.drawing import Displayable
from hsdag.ir.device import ADDED_DEFAULTS, PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.graph.reader import Shapes, input_shapes, likely_sizes, load_model, model_file
from hsdag.ir.graph.scenario import Scenario, parse_scenarios
from hsdag.ir.placement.placement import Record
from hsdag.runtime.machine.devices import PRECISION, cpu_topology, named_devices
from hsdag.runtime.machine.usable import usable_memory_bytes
from hsdag.runtime.measuring.measurer import OpenVinoMeasurer
from hsdag.runtime.measuring.messages import WORKER_COMMAND, DeviceFacts, Precision, WorkerSetup, ask, worker_client
from hsdag.runtime.measuring.windows import factors_of, figures_of, least_of
from hsdag.search.options import command_words, parse_duration

WINDOWS = 4
"""Number of rounds in which two devices run alone and side by side, for each kind of small model."""


class HostFacts(Record):
    """The machine's CPU threads and memory."""

    threads: int
    memory_bytes: float
    usable_memory_bytes: float


class ExaminedDevice(Record):
    """A device with its facts and the precision of a small network's outputs; either is None if the device failed."""

    name: str
    plugin: str
    properties: dict[str, str]
    facts: DeviceFacts | None
    outputs_of_a_small_network: Precision | None


class DevicePair(Record):
    """Two devices, and how well they work at the same time.

    ``gains`` is the speed of both at once over that of one after the other, for small models bound by compute and by
    memory: 2 if they do not disturb each other, 1 if they take turns.
    """

    names: tuple[str, str]
    gains: dict[str, float]


class Examination(Displayable, Record):
    """Result of an examination; the most severe findings come first, and ``next`` lists commands to run.

    ``absent`` says, by plugin, why OpenVINO may list no devices of it. ``genai`` says, by feature of OpenVINO GenAI,
    why a placed model of the folder cannot use it here, None if it can.
    """

    openvino: str
    host: HostFacts
    devices: tuple[ExaminedDevice, ...]
    absent: dict[str, str] = Field(default_factory=dict)
    pairs: tuple[DevicePair, ...]
    model: ModelReport | None
    genai: dict[str, str | None] = Field(default_factory=dict)
    findings: tuple[Finding, ...]
    next: tuple[str, ...]

    @property
    def said(self) -> list[str]:
        """Return the findings, equal ones joined, and the commands to run next."""
        groups: dict[tuple[str, str], list[str]] = {}
        for finding in self.findings:
            groups.setdefault((finding.severity.value, finding.text), []).append(finding.about)
        lines = [f"{severity}: {', '.join(about)}: {text}" for (severity, text), about in groups.items()]
        return [*lines, *(f"next: {command}" for command in self.next)]


@checked
def examine(
    source: Any = None,
    devices: str | None = None,
    partition_cpu: int | None = None,
    *,
    shape: str | Mapping[str, Sequence[int]] | None = None,
    data_shape: str | Sequence[str] = (),
    tokens: str | None = None,
    budget: str | float = "60s",
    command: Sequence[str] = WORKER_COMMAND,
    on_step: Callable[[str], None] = lambda _: None,
) -> Examination:
    """Examine this machine, and what HETERO would do with a model.

    Plugins run in a separate process, so one that crashes, hangs or fails becomes a finding. Raises ModelError for a
    model that cannot be read or does not take the shapes, and DeviceError for a malformed list of devices.

    Args:
        source: A model file, an ``ov.Model``, or None to examine the devices only.
        budget: Time limit for everything that compiles.
        data_shape: Typical shapes with which a model of dynamic shapes is run; ``tokens`` gives them for language
            models.

    Examples:
        >>> import hsdag, openvino as ov
        >>> x = ov.opset13.parameter([2], name="x")
        >>> model = ov.Model([ov.opset13.negative(ov.opset13.relu(x))], [x], "small")
        >>> examination = hsdag.doctor(model, "CPU", budget="20s")
        >>> [device.name for device in examination.devices], examination.model.unsupported
        (['CPU'], {'CPU': []})
    """
    shapes = input_shapes(shape)
    scenarios = parse_scenarios(data_shape, tokens)
    budget_s = parse_duration(budget)
    readable = source.clone() if isinstance(source, ov.Model) else source  # leave a caller's model unchanged
    model = None if source is None else load_model(readable, shapes, dynamic=True)
    typical = () if model is None else tuple(scenario.of(model) for scenario in scenarios)
    with ExitStack() as stack:
        path = None if model is None else model_file(source, model, stack)
        client = stack.enter_context(worker_client(WorkerSetup(path, (), shapes, scenarios=typical), command))
        questions = Questions(client, budget_s, on_step)
        listed = sorted(_listed(questions), key=lambda name: name.startswith("CPU"))  # else HETERO uses the CPU alone
        named = named_devices(devices, partition_cpu, listed)
        asked = tuple(_examined_device(questions, spec) for spec in named.placed)
        both = zip(named.placed, asked, strict=True)
        loaded = [(spec, device.facts) for spec, device in both if device.facts is not None]
        specs = [spec for spec, _ in loaded]
        pairs = tuple(_examined_pair(questions, *two) for two in itertools.combinations(specs, 2))
        report = None if model is None else examined_model(questions, model, typical, loaded)
    threads = cpu_topology().threads
    inputs = () if model is None or scenarios else model.inputs
    is_path = isinstance(source, str | Path)
    file = path if is_path or source is None else Path("MODEL")
    memory_bytes = float(psutil.virtual_memory().total)
    shape_words = shape_options(shapes, scenarios)
    return Examination(
        openvino=ov.get_version(),
        host=HostFacts(threads=threads, memory_bytes=memory_bytes, usable_memory_bytes=usable_memory_bytes()),
        devices=asked,
        absent=absent_devices(listed) if devices is None else {},
        pairs=pairs,
        model=report,
        genai=genai_features(Path(source), model, len(loaded)) if is_path and model is not None else {},
        findings=tuple(sorted(questions.findings, key=lambda finding: list(Severity).index(finding.severity))),
        next=next_commands(file, report, specs, partition_cpu, threads, shape_words, likely_sizes(inputs)),
    )


def _listed(questions: Questions) -> tuple[str, ...]:
    """Return the devices that OpenVINO lists; if that crashes, those that each plugin lists by itself."""
    listed = questions.ask("OpenVINO", "listing devices", ask(OpenVinoMeasurer.list_devices), compiles=False)
    if listed is not None:
        return listed
    requests = [(name, ask(OpenVinoMeasurer.list_devices, name)) for name in PLUGIN_LIBRARIES]
    return sum((questions.ask(name, "listing its devices", how, compiles=False) or () for name, how in requests), ())


def _examined_device(questions: Questions, spec: DeviceSpec) -> ExaminedDevice:
    """Load a device, run a small network on it, and collect findings."""
    facts = questions.ask(spec.name, "loading", ask(OpenVinoMeasurer.device_facts, spec), compiles=False)
    precision = (
        None if facts is None else questions.ask(spec.name, "a small network", ask(OpenVinoMeasurer.precision, spec))
    )
    if facts is not None and precision is not None:
        questions.findings += of_precision(spec.name, facts, precision)
    return ExaminedDevice(**vars(spec), facts=facts, outputs_of_a_small_network=precision)


def _examined_pair(questions: Questions, one: DeviceSpec, other: DeviceSpec) -> DevicePair:
    """Run two devices side by side and collect findings."""
    about = f"{one.name} and {other.name}"
    gains: dict[str, float] = {}
    for kind in ("compute", "memory"):
        question = ask(OpenVinoMeasurer.contention, (one, other), kind)
        asked = (questions.ask(about, f"side by side, bound by {kind}", question) for _ in range(WINDOWS))
        windows = [figures_of(answer) for answer in asked if answer is not None]
        if windows:
            factor = factors_of(least_of(np.array(windows)), 2)
            gains[kind] = float(1 / factor[0, 1] + 1 / factor[1, 0])
    questions.findings += of_overlap(about, gains)
    return DevicePair(names=(one.name, other.name), gains=gains)


def next_commands(
    model: Path | None,
    report: ModelReport | None,
    devices: Sequence[DeviceSpec],
    parts: int | None,
    threads: int,
    shapes: Sequence[str],
    sizes: tuple[str, str] | None = None,
) -> tuple[str, ...]:
    """Return the commands to run next, the most useful first.

    Args:
        model: The model's file.
        parts: Number of parts that the CPU was divided into; None if it was not.
        threads: Threads of the CPU, which can be divided if it is the only device.
        shapes: Options that give shapes.
        sizes: A parameter and its value that give sizes to inputs without any.
    """
    if not devices:
        return ()
    file = "MODEL" if model is None else str(model)
    if parts is None and threads > 1 and [spec.name for spec in devices] == ["CPU"]:
        parts = 2
    in_f32 = set() if report is None else {*report.imprecise}
    made = [f"CPU_{part}" for part in range(parts or 0)] + ["CPU"] * (parts is not None)
    rest = [_as_option(spec, in_f32=spec.name in in_f32) for spec in devices if spec.name not in made]
    where = ["--devices", ",".join(rest)] if rest else []
    where += [] if parts is None else ["--partition-cpu", str(parts)]
    where += ["--infer-precision", "f32"] if in_f32 & {*made} else []
    if sizes is not None:
        option, value = flag(sizes[0]), sizes[1]
        shapes = [option, f"{shapes[1]},{value}"] if option in shapes else [*shapes, option, value]
    commands = [["doctor", file, *where]] if model is None else []
    return tuple(command_line(["hsdag", *words]) for words in [*commands, ["place", file, *where, *shapes]])


def shape_options(shapes: Shapes, scenarios: Sequence[Scenario]) -> list[str]:
    """Return shapes and scenarios as command-line options."""
    tokens = ",".join(scenario.tokens for scenario in scenarios if scenario.tokens)
    texts = [] if tokens else [scenario.text for scenario in scenarios]
    options = {"shape": shapes, "tokens": tokens, "data_shape": texts}
    return list(command_words(options, dict.fromkeys(options)) or ())


def _as_option(spec: DeviceSpec, *, in_f32: bool) -> str:
    """Format a device as in ``--devices``."""
    implied = ADDED_DEFAULTS.get(spec.plugin, {}).items()
    properties = dict(spec.properties.items() - implied) | ({PRECISION: "f32"} if in_f32 else {})
    listed = ";".join(f"{key}={value}" for key, value in sorted(properties.items()))
    name = f"{spec.name}={spec.plugin}" if spec.is_added else spec.name
    return f"{name}[{listed}]" if listed else name
