"""Devices of this machine and those that the user names, partitions of the CPU, and calls to devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import openvino as ov

from hsdag.base.errors import DeviceError, ExecutionError, OptionError, last_line, option
from hsdag.base.host import SYS, own_cpus
from hsdag.ir.device import ADDED_DEFAULTS, PLUGIN_LIBRARIES, DeviceIndex, DeviceSpec, loads_plugins, parse_devices

CPU_LISTS = SYS / "devices"
"""Folder in which Linux lists the processors of each kind of core of a hybrid CPU."""


@dataclass(frozen=True)
class DeviceInfo:
    """A device that OpenVINO lists; ``failure`` says why it does not load, if it does not."""

    name: str
    full_name: str
    capabilities: tuple[str, ...]
    failure: str | None = None


@dataclass(frozen=True)
class CudaInfo:
    """A CUDA device: its torch name, its full name, and its memory."""

    name: str
    full_name: str
    memory_bytes: int


@dataclass(frozen=True)
class CpuTopology:
    """Numbers of logical processors for this process, by kind of core; ``efficiency`` is 0 if all are alike."""

    performance: int
    efficiency: int

    @property
    def threads(self) -> int:
        """Return the number of all logical processors."""
        return self.performance + self.efficiency


@dataclass(frozen=True)
class DeviceSet:
    """Devices to place on, and the whole devices that their partitions compete with.

    ``placed`` are searched over. ``rivals`` are physical devices of which some ``placed`` devices are partitions, and
    devices as they were before hsdag chose settings for them; ``defaults`` maps the names of the latter to the names of
    the devices with settings.
    """

    placed: tuple[DeviceSpec, ...]
    rivals: tuple[DeviceSpec, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def index(self) -> DeviceIndex:
        """Return the index of the devices that are placed on."""
        return DeviceIndex(self.placed)

    @property
    def whole_devices(self) -> tuple[str, ...]:
        """Return the names of rivals of which placed devices are partitions."""
        placed = self.index.names
        return tuple(spec.name for spec in self.rivals if self.defaults.get(spec.name, spec.name) not in placed)

    @property
    def all(self) -> tuple[DeviceSpec, ...]:
        """Return every device that may hold the whole model."""
        return self.placed + self.rivals

    def answering(self, name: str) -> list[DeviceSpec]:
        """Return the devices that a placement lists if its answer has this name, without those in ``defaults``.

        If the answer is one of these, it takes the place and the name of the device with settings.
        """
        answer = next((spec for spec in self.rivals if spec.name == name), None)
        replaced = self.defaults.get(name)
        return [
            replace(answer, name=spec.name) if answer and spec.name == replaced else spec
            for spec in self.all
            if spec.name not in self.defaults
        ]


def list_devices() -> tuple[DeviceInfo, ...]:
    """Return every device that OpenVINO finds here."""
    core = ov.Core()
    infos = []
    for name in core.available_devices:
        try:
            full_name = str(core.get_property(name, "FULL_DEVICE_NAME"))
            capabilities = tuple(str(c) for c in core.get_property(name, "OPTIMIZATION_CAPABILITIES"))
            infos.append(DeviceInfo(name, full_name, capabilities))
        except RuntimeError as error:
            infos.append(DeviceInfo(name, "", (), last_line(error)))
    return tuple(infos)


@cache
def listed_names() -> tuple[str, ...]:
    """Return OpenVINO's names of the devices here."""
    return tuple(ov.Core().available_devices)


def canonical(spec: DeviceSpec, listed: Sequence[str] | None = None) -> DeviceSpec:
    """Return the device under the name that OpenVINO lists: GPU.0 for GPU if there are several, else GPU for GPU.0.

    ``listed`` are these names, by default those here; a device that is not among them keeps its name.
    """
    plugin = _listed(spec.plugin, listed_names() if listed is None else listed)
    return replace(spec, name=spec.name if spec.is_added else plugin, plugin=plugin)


def execution_devices(compiled: Any, specs: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """Return OpenVINO's names of the devices on which a model compiled for ``specs`` runs.

    The GPU plugin reports the name under which a process loaded a GPU first, whatever the model was compiled for.
    """
    names: list[str] = []
    for told in compiled.get_property("EXECUTION_DEVICES"):
        name = str(told).strip("()")
        if name.startswith("GPU"):
            gpu = DeviceSpec.parse(f"GPU.{name.partition('.')[2] or 0}")
            loaded = [spec.openvino_name for spec in specs if canonical(spec).plugin == canonical(gpu).plugin]
            names += loaded or [canonical(gpu).name]
        else:
            names.append(name)
    return tuple(dict.fromkeys(names))


def list_cuda() -> tuple[CudaInfo, ...]:
    """Return the CUDA devices that torch can use here; none if torch was built without CUDA."""
    import torch

    properties = [torch.cuda.get_device_properties(idx) for idx in range(torch.cuda.device_count())]
    return tuple(CudaInfo(f"cuda:{idx}", str(gpu.name), int(gpu.total_memory)) for idx, gpu in enumerate(properties))


def cpu_topology() -> CpuTopology:
    """Return the number of logical processors by kind of core; Linux lists both kinds on hybrid Intel processors."""
    usable = own_cpus()
    efficiency = _cpu_list(CPU_LISTS / "cpu_atom" / "cpus") & usable
    performance = usable - efficiency
    if not performance or not _cpu_list(CPU_LISTS / "cpu_core" / "cpus"):
        return CpuTopology(len(usable), 0)
    return CpuTopology(len(performance), len(efficiency))


def partition_cpu(num_parts: int, topology: CpuTopology) -> tuple[DeviceSpec, ...]:
    """Return devices CPU_0..CPU_{n-1} with disjoint shares of the threads.

    On a hybrid CPU no partition mixes performance and efficiency cores: partitions are dealt to the two kinds in
    proportion to their threads, at least one each. Raises DeviceError when there are fewer threads than
    partitions, or fewer than two partitions are requested.
    """
    if num_parts < 2:
        raise DeviceError(f"{option('partition_cpu')} {num_parts}: a CPU is divided into at least 2 devices")
    if topology.threads < num_parts:
        raise DeviceError(
            f"{option('partition_cpu')} {num_parts}: the CPU has only {topology.threads} threads to share"
        )
    kinds = [("", topology.threads, num_parts)]
    if topology.efficiency:
        share = round(num_parts * topology.performance / topology.threads)
        fast = min(max(share, 1, num_parts - topology.efficiency), num_parts - 1, topology.performance)
        kinds = [("PCORE_ONLY", topology.performance, fast), ("ECORE_ONLY", topology.efficiency, num_parts - fast)]
    specs: list[DeviceSpec] = []
    for core_type, threads, parts in kinds:
        for part in range(parts):
            properties = dict(ADDED_DEFAULTS["CPU"])
            properties["INFERENCE_NUM_THREADS"] = str(threads // parts + (part < threads % parts))
            if core_type:
                properties["SCHEDULING_CORE_TYPE"] = core_type
            specs.append(DeviceSpec(f"CPU_{len(specs)}", "CPU", properties))
    return tuple(specs)


DEFAULT = "_default"
"""Suffix of the name of an OpenVINO device without the settings that were chosen for it."""


def default_of(spec: DeviceSpec, properties: Mapping[str, str] | None = None) -> DeviceSpec:
    """Return a further device over the plugin of an OpenVINO device, with these properties alone."""
    return DeviceSpec(f"{spec.plugin.replace('.', '')}{DEFAULT}", spec.plugin, dict(properties or {}))


def resolve_devices(devices: str | None, num_cpu_parts: int | None) -> DeviceSet:
    """Return the devices that a user named, each loaded once to check that it works.

    ``devices`` is a list in the form of ``--devices`` (None: all that load here); with ``num_cpu_parts``, CPU
    partitions replace the CPU. Raises DeviceError when one is unknown or fails to load.
    """
    loading = [info.name for info in list_devices() if info.failure is None] if devices is None else listed_names()
    resolved = named_devices(devices, num_cpu_parts, loading)
    make_core(resolved.all)
    return resolved


def named_devices(devices: str | None, num_cpu_parts: int | None, listed: Sequence[str]) -> DeviceSet:
    """Return the devices as ``resolve_devices`` does, but load no plugin; ``listed`` are the names listed here."""
    if devices is not None:
        specs = tuple(canonical(spec, listed) for spec in parse_devices(devices))
    else:
        specs = tuple(DeviceSpec(name, name) for name in listed)
    if num_cpu_parts is not None:
        parts = partition_cpu(num_cpu_parts, cpu_topology())
        rest = tuple(spec for spec in specs if spec.name != "CPU")
        specs = parts + rest
        if len({spec.openvino_name for spec in specs}) != len(specs):
            raise DeviceError(
                f"{option('devices')} names a device that {option('partition_cpu')} makes; give it another name"
            )
    if len({spec.name for spec in specs}) < len(specs):
        raise DeviceError(f"a device occurs twice in {devices!r}: without a number, a name means number 0")
    names = {spec.name for spec in specs}
    whole_devices = dict.fromkeys(spec.plugin for spec in specs if spec.is_added and spec.plugin not in names)
    return DeviceSet(specs, tuple(DeviceSpec(plugin, plugin) for plugin in whole_devices))


@loads_plugins
def make_core(specs: tuple[DeviceSpec, ...]) -> Any:
    """Return an ``ov.Core`` that knows the devices. Raises DeviceError when one is unknown or fails to load."""
    core = ov.Core()
    listed = core.available_devices if specs else []  # this loads plugins
    for spec in specs:
        if not spec.is_added and _listed(spec.name, listed) not in listed:
            raise DeviceError(
                f"unknown device {spec.name!r}: OpenVINO finds {', '.join(listed) or 'none'} here; a further one is "
                f"added as {spec.name}=PLUGIN[KEY=VALUE;...] with PLUGIN one of {', '.join(PLUGIN_LIBRARIES)}"
            )
        spec.register(core)
    return core


def property_text(value: Any) -> str:
    """Return the value of a property in the text form that OpenVINO reads."""
    if isinstance(value, ov.Type):
        return str(value.get_type_name())
    if isinstance(value, bool):
        return "YES" if value else "NO"
    return str(value).rpartition(".")[2]


def reduced_precision(specs: tuple[DeviceSpec, ...]) -> str:
    """Return the precisions below single in which devices compute by default or as hinted, in words; "" for none.

    Devices that do not report one count as reduced. Raises DeviceError as ``make_core`` does.
    """
    core = make_core(specs)
    precisions = {precision_of(core, spec) for spec in specs}
    return "a lower precision" if "" in precisions else " or ".join(sorted(precisions - {"f32"}))


def precision_of(core: Any, spec: DeviceSpec) -> str:
    """Return the precision in which a device computes, by default or as hinted; "" where it does not report it."""
    try:
        return property_text(core.get_property(spec.openvino_name, PRECISION))
    except RuntimeError:
        return ""


def in_bf16(specs: Sequence[DeviceSpec], hint: str | ov.Type | None = None, core: Any = None) -> set[int]:
    """Return the numbers of the devices that are CPUs computing in bf16; a ``hint`` for all replaces their own.

    Without a core to ask, the devices may be on another machine, so CPUs without a hint count too.
    """
    precisions = [
        hint or (spec.properties.get(PRECISION, "bf16") if core is None else precision_of(core, spec)) for spec in specs
    ]
    return {d for d, spec in enumerate(specs) if spec.plugin == "CPU" and property_text(precisions[d]) == "bf16"}


def _listed(name: str, listed: Sequence[str]) -> str:
    """Return the name under which a device is listed, if it is: GPU means GPU.0 where there are several."""
    return next((form for form in (name, f"{name}.0", name.removesuffix(".0")) if form in listed), name)


def _cpu_list(path: Path) -> set[int]:
    """Return the processor numbers in a Linux list such as 0-7,16; none where the file is missing."""
    if not path.exists():
        return set()
    numbers: set[int] = set()
    for item in path.read_text().strip().split(","):
        first, _, last = item.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


PRECISION = "INFERENCE_PRECISION_HINT"
"""OpenVINO's property for the precision in which a device computes."""


def with_precision(specs: Sequence[DeviceSpec], precision: str) -> tuple[DeviceSpec, ...]:
    """Return the devices with a precision hint. Raises OptionError where a device has another hint of its own."""
    for spec in specs:
        hint = spec.properties.get(PRECISION, precision)
        if hint != precision:
            raise OptionError(
                f"device {spec.name!r} has {PRECISION}={hint} among its properties, and "
                f"{option('infer_precision')} says {precision}; leave one of them out"
            )
    return tuple(replace(spec, properties={**spec.properties, PRECISION: precision}) for spec in specs)


def infer_unchecked(request: Any) -> None:
    """Infer in the calling thread, which is quickest, but may fail without an error.

    Where the CPU plugin has one thread per inference it swallows errors in the caller's thread (2026.4.1), and
    HETERO then goes on with the next submodel, so that every output is written. In a thread of the plugin errors are
    reported.
    """
    request.infer(share_outputs=True, decode_strings=False)


def infer_checked(request: Any) -> None:
    """Infer in a thread of the plugin. Raises RuntimeError when the inference failed."""
    request.start_async()
    request.wait()


@contextmanager
def device_calls() -> Iterator[None]:
    """Turn errors of OpenVINO in the body into ExecutionError with their reason.

    OpenVINO turns every exception of C++ and of Python ops into RuntimeError, except MemoryError; others are defects of
    hsdag's.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise ExecutionError(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """Return the text of an OpenVINO error, without source files and the stack of a Python op."""
    kept: list[str] = []
    for line in (line.strip() for line in str(error).splitlines()):
        if line == "At:":
            break
        if line and not line.startswith(("Exception from", "Caught exception: Exception from")):
            kept.append(line)
    return ": ".join(kept) or type(error).__name__
