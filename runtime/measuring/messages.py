"""Messages of the measuring process: its setup and requests, the candidates that they name, and its answers.

A candidate is a compiled way to run a model. A request is a method of a worker's protocol and the arguments to call it
with.
Legend: N ops, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Concatenate, NotRequired, ParamSpec, TypeAlias, TypedDict, TypeVar

from hsdag.base.processes import Request, WorkerClient, process_command
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.placement.placement import ExecutorName
from hsdag.ir.shards.regions import Region
from hsdag.runtime.machine.usable import usable_memory_bytes


@dataclass(frozen=True)
class Candidate:
    """Arguments of ``compile_model``: a target and, for a placement, OpenVINO's device name per op.

    For executors that run devices side by side the target lists the devices in their order, ``priority`` may rank ops,
    parts are merged ``by_load`` as in ``plan_cut``, and ``regions`` are divided. ``copies`` are pairs of a device, or a
    candidate for a pipeline, with its requests or None; each runs the whole model. A property of None is left to
    OpenVINO, even if the objective has a value for it.
    """

    target: str
    devices: tuple[str, ...] | None = None  # [N]
    properties: Mapping[str, Any] = field(default_factory=dict)
    executor: ExecutorName = "hetero"
    priority: tuple[int | None, ...] | None = None  # [N] a free device takes the smallest rank first
    by_load: bool = False
    regions: tuple[Region, ...] = ()
    copies: tuple[tuple[str | Candidate, int | None], ...] = ()

    @staticmethod
    def copied(copies: Sequence[tuple[str | Candidate, int | None]]) -> Candidate:
        """Make a candidate from copies of the whole model, by OpenVINO's names, each with its requests or None.

        None stands for as many as the device asks for; pipelines need a number.
        """
        target = ",".join(copy if isinstance(copy, str) else copy.target.rpartition(":")[2] for copy, _ in copies)
        return Candidate(target, executor="work-conserving", copies=tuple(copies))

    @staticmethod
    def sharded(regions: Sequence[Region], devices: Sequence[int], order: Sequence[str]) -> Candidate:
        """Make a candidate from regions that devices compute together; ``devices`` [N] of other ops index ``order``."""
        used = sorted({d for region in regions for d in region.shares}.union(devices))
        renumbered = [replace(r, shares={used.index(d): share for d, share in r.shares.items()}) for r in regions]
        of_ops = tuple(order[d] for d in devices)
        target = ",".join(order[d] for d in used)
        return Candidate(target, of_ops, executor="work-conserving", regions=tuple(renumbered))

    @staticmethod
    def placed(devices: Sequence[str]) -> Candidate:
        """Make a candidate from OpenVINO's device name per op; for the device alone if there is only one."""
        used = tuple(dict.fromkeys(devices))
        return Candidate(used[0]) if len(used) == 1 else Candidate("HETERO:" + ",".join(used), tuple(devices))

    @staticmethod
    def side_by_side(
        devices: Sequence[str],
        order: Sequence[str],
        priority: Sequence[int | None] | None = None,
        *,
        by_load: bool = False,
        executor: ExecutorName = "work-conserving",
    ) -> Candidate:
        """Make a candidate for an executor that runs devices side by side; for the device alone if there is only one.

        ``devices`` [N] and ``order``, the order of the devices, are OpenVINO's names.
        """
        used = [name for name in order if name in set(devices)]
        if len(used) == 1:
            return Candidate(used[0])
        priority = tuple(priority) if priority is not None else None
        return Candidate(",".join(used), tuple(devices), executor=executor, priority=priority, by_load=by_load)

    @property
    def num_parts(self) -> int:
        """Return about how many parts of the model OpenVINO compiles one by one; 1 where it compiles the whole."""
        return 1 if self.devices is None else len(self.target.split(",")) * (1 + len(self.regions))


@dataclass(frozen=True)
class Opened:
    """A compiled candidate: seconds to compile, submodels HETERO made, devices it runs on by OpenVINO's names.

    ``first_s`` are the seconds of its first inference. By its end, the memory of the process has grown by
    ``resident_bytes`` since before compiling, and that of its GPUs by ``device_bytes``, None where no device reports
    it. Copies have ``requests``, a number for each device.
    """

    compile_s: float
    submodels: int
    devices: tuple[str, ...]
    first_s: float = 0.0
    resident_bytes: int = 0
    device_bytes: int | None = None
    requests: tuple[int, ...] = ()


def automatic_targets(placed: Sequence[DeviceSpec], rivals: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """Return the targets that let OpenVINO choose: HETERO with each device first, and AUTO.

    AUTO does not see added devices, so it gets the physical ones.
    """
    names = DeviceIndex.of(placed).openvino_names
    orders = [names[i:] + names[:i] for i in range(len(names))] if len(names) > 1 else []
    native = [spec.name for spec in (*placed, *rivals) if not spec.is_added]
    auto = ("AUTO:" + ",".join(native),) if native else ()
    return tuple("HETERO:" + ",".join(order) for order in orders) + auto


PLAIN = EAGER, CAPTURED = "EAGER", "GRAPH"
"""What stands before a device of torch's, with a colon, where it runs the model without the engine: op after op, or as
a CUDA graph."""


def plain_targets(specs: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """Return what each of torch's devices does without the engine; those of the CPU have no CUDA graph."""
    modes = {spec.openvino_name: PLAIN[: 1 if spec.plugin == "cpu" else 2] for spec in specs}
    return tuple(f"{mode}:{name}" for name, those in modes.items() for mode in those)


A = TypeVar("A")
M = TypeVar("M")
P = ParamSpec("P")

WORKER_COMMAND = process_command("hsdag.runtime.measuring.worker")


def worker_client(setup: Request[None], command: Sequence[str] = WORKER_COMMAND) -> WorkerClient:
    """Return the client of a measuring process, limited to the memory that this process may use when it starts."""
    return WorkerClient(setup, command, usable_memory_bytes)


@dataclass(frozen=True)
class WorkerSetup(Request[None]):
    """The first request: the model's file, devices to load at once, fixed shapes, and the source of inputs.

    Without a file for ``inputs``, they are random. ``scenarios`` have all inputs of the model; they are needed if
    shapes are dynamic and the model is to be run. ``model`` is None if only devices are examined. Kernels of the
    executor are compiled for ``kernels_s`` seconds at most, and interpreted then.
    """

    model: Path | None
    devices: tuple[DeviceSpec, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 0
    inputs: Path | None = None
    scenarios: tuple[Scenario, ...] = ()
    kernels_s: float = math.inf


@dataclass(frozen=True)
class Call(Request[A]):
    """A call of a method of the worker, whose return value is the answer; ``ask`` makes it with checked arguments."""

    method: Callable[..., A]
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the method's name, by which each worker finds its own."""
        return self.method.__name__


def ask(method: Callable[Concatenate[M, P], A], *args: P.args, **options: P.kwargs) -> Call[A]:
    """Return the request to call a method of a protocol of workers, see ``measurer``."""
    return Call(method, args, options)


class CallHandler:
    """Base of workers whose methods are called."""

    def handle(self, request: Call[A]) -> A:
        """Call the method and return its value."""
        answer: A = getattr(self, request.name)(*request.args, **request.options)
        return answer


Distance: TypeAlias = dict[str, float | None]
"""Distance between outputs, as ``output_difference`` returns it."""

Primitive: TypeAlias = tuple[list[int], float, int, str]
"""Ops that a primitive computes, by index (none for what a plugin added by itself), its seconds, HETERO's submodel that
it is in, and its type.
"""


class CountedTimes(TypedDict):
    """Times of a compiled model's primitives in order of execution, beside the latency of the whole.

    ``spread`` is the interquartile range of the latency over its median, over ``runs`` inferences.
    """

    primitives: list[Primitive]
    latency_s: float
    spread: float
    runs: int


class OpTimes(CountedTimes):
    """Times of a model's ops, with the figures of ``Opened`` and the memory of a device; torch's lack some."""

    compile_s: float
    first_s: NotRequired[float]
    resident_bytes: int
    device_bytes: NotRequired[int | None]
    memory_bytes: float | None


@dataclass(frozen=True)
class Beside:
    """Seconds of an inference of each device alone [D], and while the device of the column is busy too [D, D].

    The diagonal is 0. ``whole_devices_s`` are those of further devices, alone.
    """

    alone_s: tuple[float, ...]
    beside_s: tuple[tuple[float, ...], ...]
    whole_devices_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Probe:
    """A small model on one device, or cut between two by HETERO so that ``tensors`` of about ``size_bytes`` cross.

    ``kind`` is "image" (1x1 convolutions, for which plugins use their own layouts) or "matrix" (products).
    """

    devices: tuple[str, ...]
    kind: str
    tensors: int
    size_bytes: int
    runs: int
    for_s: float


@dataclass(frozen=True)
class Probed:
    """Seconds of a probe without its ops, their standard error, and the bytes of each tensor that crosses."""

    rest_s: float
    error_s: float
    tensor_bytes: int


@dataclass(frozen=True)
class DeviceFacts:
    """A device's description of itself; ``precision`` is the type in which it computes by default, None if unknown."""

    full_name: str
    kind: str | None  # integrated or discrete
    plugin_version: str
    memory_bytes: float | None
    capabilities: tuple[str, ...]
    precision: str | None


@dataclass(frozen=True)
class Precision:
    """Distances of outputs from those of the CPU in f32: by default, and with a hint of f32.

    ``driver`` is the version of the driver that a compiled model names, None if it names none.
    """

    default: Distance
    single: Distance
    driver: str | None = None
