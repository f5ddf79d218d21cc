"""Devices: those here, those that the user names, shares of the CPU as devices of their own, and calling them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov

from hsdag.ir.device import ADDED_DEFAULTS, PLUGIN_LIBRARIES, DeviceSpec, loads_plugins, parse_devices
from hsdag.ir.errors import DeviceError, ExecutionError, OptionError, last_line
from hsdag.ir.host import SYS, own_cpus

CPU_LISTS = SYS / "devices"
"""Where Linux lists the processors of either kind of core of a hybrid CPU."""


@dataclass(frozen=True)
class DeviceInfo:
    """A device OpenVINO lists here; ``failure`` says why it does not load, if it does not."""

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
    """Logical processors this process may use, by kind of core; ``efficiency`` is 0 where all cores are equal."""

    performance: int
    efficiency: int

    @property
    def threads(self) -> int:
        """All logical processors."""
        return self.performance + self.efficiency


@dataclass(frozen=True)
class DeviceSet:
    """Devices to place on, and the whole devices that their parts compete with.

    ``placed`` are searched over; ``rivals`` are physical devices of which some of ``placed`` are parts, and devices as
    they were before hsdag chose settings for them: the names of these ``defaults`` with the names of the devices.
    """

    placed: tuple[DeviceSpec, ...]
    rivals: tuple[DeviceSpec, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def wholes(self) -> tuple[str, ...]:
        """Names of rivals of which others are parts."""
        placed = {spec.name for spec in self.placed}
        return tuple(spec.name for spec in self.rivals if self.defaults.get(spec.name, spec.name) not in placed)

    @property
    def all(self) -> tuple[DeviceSpec, ...]:
        """Every device that may hold the whole model."""
        return self.placed + self.rivals

    def answering(self, name: str) -> list[DeviceSpec]:
        """The devices as a placement lists them whose answer has this name: those that are defaults are left out.

        Where the answer is one of these, it takes the place and the name of the device that it was given as.
        """
        given = {own: spec for spec in self.rivals if (own := self.defaults.get(spec.name)) and spec.name == name}
        return [
            replace(given[spec.name], name=spec.name) if spec.name in given else spec
            for spec in self.all
            if spec.name not in self.defaults
        ]


def list_devices() -> tuple[DeviceInfo, ...]:
    """Every device OpenVINO finds here."""
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
    """OpenVINO's names of the devices here."""
    return tuple(ov.Core().available_devices)


def canonical(spec: DeviceSpec, known: Sequence[str] | None = None) -> DeviceSpec:
    """The device by the name that OpenVINO lists: GPU is GPU.0 where there are several, and GPU.0 is GPU otherwise.

    ``known`` are the names listed, by default those here; what is not among them keeps its name.
    """
    plugin = _listed(spec.plugin, listed_names() if known is None else known)
    return replace(spec, name=spec.name if spec.is_added else plugin, plugin=plugin)


def execution_devices(compiled: Any, specs: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """OpenVINO's names of the devices that a compiled model runs on; ``specs`` are those that it was compiled for.

    The GPU plugin tells the name under which a process loaded a GPU first, whatever the model was compiled for.
    """
    found: list[str] = []
    for told in compiled.get_property("EXECUTION_DEVICES"):
        name = str(told).strip("()")
        if name.startswith("GPU"):
            gpu = DeviceSpec.parse(f"GPU.{name.partition('.')[2] or 0}")
            own = [spec.openvino_name for spec in specs if canonical(spec).plugin == canonical(gpu).plugin]
            found += own or [canonical(gpu).name]
        else:
            found.append(name)
    return tuple(dict.fromkeys(found))


def list_cuda() -> tuple[CudaInfo, ...]:
    """CUDA devices torch can use here; none where torch was built without CUDA."""
    import torch

    found = [torch.cuda.get_device_properties(idx) for idx in range(torch.cuda.device_count())]
    return tuple(CudaInfo(f"cuda:{idx}", str(own.name), int(own.total_memory)) for idx, own in enumerate(found))


def cpu_topology(lists: Path = CPU_LISTS) -> CpuTopology:
    """Logical processors by kind of core; Linux lists both kinds on hybrid Intel processors."""
    usable = own_cpus()
    efficiency = _cpu_list(lists / "cpu_atom" / "cpus") & usable
    performance = usable - efficiency
    if not performance or not _cpu_list(lists / "cpu_core" / "cpus"):
        return CpuTopology(len(usable), 0)
    return CpuTopology(len(performance), len(efficiency))


def partition_cpu(num_parts: int, topology: CpuTopology) -> tuple[DeviceSpec, ...]:
    """CPU_0..CPU_{n-1} with disjoint shares of the threads.

    On a hybrid CPU no part mixes performance and efficiency cores: parts are dealt to the two kinds in
    proportion to their threads, at least one each. Raises DeviceError when there are fewer threads than
    parts, or fewer than two parts are requested.
    """
    if num_parts < 2:
        raise DeviceError(f"--partition-cpu {num_parts}: a CPU is divided into at least 2 devices")
    if topology.threads < num_parts:
        raise DeviceError(f"--partition-cpu {num_parts}: the CPU has only {topology.threads} threads to share")
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
"""How the name of a device ends that is one of OpenVINO's without the settings that were chosen for it."""


def default_of(spec: DeviceSpec, given: Mapping[str, str] | None = None) -> DeviceSpec:
    """A further device over the plugin of one of OpenVINO's, with its own settings but for those that are given."""
    return DeviceSpec(f"{spec.plugin.replace('.', '')}{DEFAULT}", spec.plugin, dict(given or {}))


def resolve_devices(devices: str | None, num_cpu_parts: int | None) -> DeviceSet:
    """The devices that a user named, each loaded once to check that it works.

    ``devices`` is a list as ``--devices`` takes it (None: all that load here); with ``num_cpu_parts``, the
    parts take the place of CPU. Raises DeviceError when one is unknown or fails to load.
    """
    loading = [info.name for info in list_devices() if info.failure is None] if devices is None else listed_names()
    found = named_devices(devices, num_cpu_parts, loading)
    make_core(found.all)
    return found


def named_devices(devices: str | None, num_cpu_parts: int | None, known: Sequence[str]) -> DeviceSet:
    """The same, but no plugin is loaded: ``known`` are the names listed here, and all that is used by default."""
    if devices is not None:
        specs = tuple(canonical(spec, known) for spec in parse_devices(devices))
    else:
        specs = tuple(DeviceSpec(name, name) for name in known)
    if num_cpu_parts is not None:
        parts = partition_cpu(num_cpu_parts, cpu_topology())
        rest = tuple(spec for spec in specs if spec.name != "CPU")
        specs = parts + rest
        if len({spec.openvino_name for spec in specs}) != len(specs):
            raise DeviceError("--devices names a device that --partition-cpu makes; give it another name")
    if len({spec.name for spec in specs}) < len(specs):
        raise DeviceError(f"a device occurs twice in {devices!r}: without a number, a name means number 0")
    names = {spec.name for spec in specs}
    wholes = dict.fromkeys(spec.plugin for spec in specs if spec.is_added and spec.plugin not in names)
    return DeviceSet(specs, tuple(DeviceSpec(plugin, plugin) for plugin in wholes))


@loads_plugins
def make_core(specs: tuple[DeviceSpec, ...]) -> Any:
    """An ``ov.Core`` that knows the devices. Raises DeviceError when one is unknown or fails to load."""
    core = ov.Core()
    known = core.available_devices if specs else []  # it loads plugins
    for spec in specs:
        if not spec.is_added and _listed(spec.name, known) not in known:
            raise DeviceError(
                f"unknown device {spec.name!r}: OpenVINO finds {', '.join(known) or 'none'} here; a further one is "
                f"added as {spec.name}=PLUGIN[KEY=VALUE;...] with PLUGIN one of {', '.join(PLUGIN_LIBRARIES)}"
            )
        spec.register(core)
    return core


def type_name(precision: str | ov.Type) -> str:
    """The name of a precision; a GPU says it in the text that it was given."""
    return precision if isinstance(precision, str) else str(precision.get_type_name())


def reduced_precision(specs: tuple[DeviceSpec, ...]) -> str:
    """The precisions below single that devices compute in by default, or as INFERENCE_PRECISION_HINT says; "" for none.

    Devices that do not say count as reduced. Raises DeviceError as ``make_core`` does.
    """
    core = make_core(specs)
    found = {precision_of(core, spec) for spec in specs}
    return "a lower precision" if "" in found else " or ".join(sorted(found - {"f32"}))


def precision_of(core: Any, spec: DeviceSpec) -> str:
    """The precision that a device computes in, by default or by INFERENCE_PRECISION_HINT; "" where it does not say."""
    try:
        return type_name(core.get_property(spec.openvino_name, PRECISION))
    except RuntimeError:
        return ""


def in_bf16(specs: Sequence[DeviceSpec], hint: str | ov.Type | None = None, core: Any = None) -> set[int]:
    """Which of the devices are CPUs that compute in bf16, by number; a ``hint`` to all takes the place of their own.

    Without a core to ask, they may be on another machine: those count that were told nothing else, too.
    """
    own = [
        hint or (spec.properties.get(PRECISION, "bf16") if core is None else precision_of(core, spec)) for spec in specs
    ]
    return {d for d, spec in enumerate(specs) if spec.plugin == "CPU" and type_name(own[d]) == "bf16"}


def _listed(name: str, known: Sequence[str]) -> str:
    """The name under which a device is listed, where it is: GPU means GPU.0 where there are several."""
    return next((own for own in (name, f"{name}.0", name.removesuffix(".0")) if own in known), name)


def _cpu_list(path: Path) -> set[int]:
    """Processor numbers from a Linux list such as 0-7,16; empty where the file is missing."""
    if not path.exists():
        return set()
    numbers: set[int] = set()
    for item in path.read_text().strip().split(","):
        first, _, last = item.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


PRECISION = "INFERENCE_PRECISION_HINT"
"""OpenVINO's property for the precision that a device computes in."""


def with_precision(specs: Sequence[DeviceSpec], precision: str) -> tuple[DeviceSpec, ...]:
    """The devices with a hint of precision. Raises OptionError where one was given another of its own."""
    for spec in specs:
        own = spec.properties.get(PRECISION, precision)
        if own != precision:
            raise OptionError(
                f"device {spec.name!r} has {PRECISION}={own} among its properties, and --infer-precision says "
                f"{precision}; leave one of them out"
            )
    return tuple(replace(spec, properties={**spec.properties, PRECISION: precision}) for spec in specs)


def infer_unchecked(request: Any) -> None:
    """Run in the calling thread, which is quickest. It may have failed where nothing is raised.

    Where the CPU plugin has one thread per inference it swallows what goes wrong in the caller's thread (2026.4.1), and
    HETERO then goes on with the next submodel, so that every output is written. A thread of the plugin tells.
    """
    request.infer(share_outputs=True, decode_strings=False)


def infer_checked(request: Any) -> None:
    """Run in a thread of the plugin. Raises RuntimeError when the inference failed."""
    request.start_async()
    request.wait()


@contextmanager
def device_calls() -> Iterator[None]:
    """Around calls of OpenVINO: what it raises becomes ExecutionError with its reason.

    It turns every exception of C++ and of Python ops into RuntimeError; but for memory, others are defects of ours.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise ExecutionError(reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """What an error of OpenVINO's says, without the source files it went through and the stack of a Python op."""
    kept: list[str] = []
    for line in (line.strip() for line in str(error).splitlines()):
        if line == "At:":
            break
        if line and not line.startswith(("Exception from", "Caught exception: Exception from")):
            kept.append(line)
    return ": ".join(kept) or type(error).__name__
