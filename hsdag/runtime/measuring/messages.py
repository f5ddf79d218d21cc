"""The process that measures and examines: how it is started and asked, about which candidates, and what it answers.

A candidate is a compiled way to run a model. A request is a method of the worker and the arguments to call it with.
Legend: N ops, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.placement.placement import ExecutorName
from hsdag.ir.processes import Request, WorkerClient, process_command
from hsdag.ir.shards.regions import Region
from hsdag.runtime.machine.usable import usable_memory_bytes


@dataclass(frozen=True)
class Candidate:
    """What to hand to ``compile_model``: a target and, for a placement, OpenVINO's device name per op.

    For executors that run devices side by side the target lists the devices in their order, ``priority`` may rank
    ops, parts are merged ``by_load`` as ``plan_cut`` has it, and ``regions`` are divided. With ``copies``, requests by
    device or None, each device has the whole model; by a candidate, that is a pipeline beside them. A property of None
    is left to OpenVINO, whatever the objective's.
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
        """Copies of the whole model, by OpenVINO's names, each with its requests or as many as the device asks for.

        Pipelines have a number of requests.
        """
        target = ",".join(each if isinstance(each, str) else each.target.rpartition(":")[2] for each, _ in copies)
        return Candidate(target, executor="work-conserving", copies=tuple(copies))

    @staticmethod
    def sharded(regions: Sequence[Region], devices: Sequence[int], order: Sequence[str]) -> Candidate:
        """Regions that devices compute together; ``devices`` [N] of all other ops are indices of ``order``."""
        used = sorted({d for region in regions for d in region.shares}.union(devices))
        renumbered = [replace(r, shares={used.index(d): share for d, share in r.shares.items()}) for r in regions]
        of_ops = tuple(order[d] for d in devices)
        target = ",".join(order[d] for d in used)
        return Candidate(target, of_ops, executor="work-conserving", regions=tuple(renumbered))

    @staticmethod
    def placed(devices: Sequence[str]) -> Candidate:
        """A placement, by OpenVINO's device name per op; for the device alone where there is only one."""
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
        """A placement for an executor that runs devices side by side; for the device alone where there is only one.

        ``devices`` [N] and ``order``, that of the devices among themselves, are OpenVINO's names.
        """
        used = [name for name in order if name in set(devices)]
        if len(used) == 1:
            return Candidate(used[0])
        priority = tuple(priority) if priority is not None else None
        return Candidate(",".join(used), tuple(devices), executor=executor, priority=priority, by_load=by_load)


@dataclass(frozen=True)
class Opened:
    """A compiled candidate: seconds to compile, submodels HETERO made, devices it runs on by OpenVINO's names.

    ``first_s`` are the seconds of its first inference. By the end of that, ``resident_bytes`` more are in the memory of
    the process than before compiling, and ``device_bytes`` in that of its GPUs: None where no device tells. Copies have
    ``requests``, as many for each device.
    """

    compile_s: float
    submodels: int
    devices: tuple[str, ...]
    first_s: float = 0.0
    resident_bytes: int = 0
    device_bytes: int | None = None
    requests: tuple[int, ...] = ()


def automatic_targets(placed: Sequence[DeviceSpec], rivals: Sequence[DeviceSpec]) -> tuple[str, ...]:
    """What OpenVINO would do by itself: HETERO with each device first, and AUTO over its own devices.

    AUTO does not see added devices, so it gets the physical ones.
    """
    names = [spec.openvino_name for spec in placed]
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
P = ParamSpec("P")

WORKER_COMMAND = process_command("hsdag.runtime.measuring.worker")


def worker_client(setup: Request[None], command: Sequence[str] = WORKER_COMMAND) -> WorkerClient:
    """The client of a measuring process, within the memory that this process may use when it starts."""
    return WorkerClient(setup, command, usable_memory_bytes)


@dataclass(frozen=True)
class WorkerSetup(Request[None]):
    """The first request: the model's file, devices to load at once, fixed shapes, and where inputs come from.

    Without a file for ``inputs``, they are random. ``scenarios`` have all inputs of the model; there are some where
    shapes are dynamic and the model is to be run. ``model`` is None where only devices are asked about. Kernels of the
    executor are compiled for ``kernels_s`` at most, and interpreted then.
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
    """A method of the worker to be called, by its name; what it returns is the answer."""

    method: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def ask(method: Callable[Concatenate[Any, P], A], *args: P.args, **options: P.kwargs) -> Call[A]:
    """The request for a method of a worker's class; workers of other classes have methods of the same names."""
    return Call(method.__name__, args, options)


class CallHandler:
    """A worker whose methods are called by name."""

    def handle(self, request: Call[A]) -> A:
        """What the method returns."""
        answer: A = getattr(self, request.method)(*request.args, **request.options)
        return answer


Distance: TypeAlias = dict[str, float | None]
"""How far outputs are from others, as ``output_difference`` has it."""


@dataclass(frozen=True)
class Beside:
    """Seconds of an inference of each device alone [D], and while the device of the column is busy too [D, D].

    The diagonal is 0. ``wholes_s`` are those of further devices, alone.
    """

    alone_s: tuple[float, ...]
    beside_s: tuple[tuple[float, ...], ...]
    wholes_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Probe:
    """A small model on one device, or cut between two by HETERO so that ``tensors`` of about ``size_bytes`` cross.

    ``kind`` is "image" (1x1 convolutions, which plugins compute in layouts of their own) or "matrix" (products).
    """

    devices: tuple[str, ...]
    kind: str
    tensors: int
    size_bytes: int
    runs: int
    for_s: float


@dataclass(frozen=True)
class Probed:
    """Seconds that a probe takes beside its ops, its standard error, and the bytes of each tensor that crosses."""

    rest_s: float
    error_s: float
    tensor_bytes: int


@dataclass(frozen=True)
class DeviceFacts:
    """What a device says of itself; ``precision`` is the type that it computes in by default, None where unknown."""

    full_name: str
    kind: str | None  # integrated or discrete
    plugin_version: str
    memory_bytes: float | None
    capabilities: tuple[str, ...]
    precision: str | None


@dataclass(frozen=True)
class Precision:
    """How far outputs are from those of the CPU in f32: by default, and with a hint of f32.

    ``driver`` is the version of the driver that a compiled model names, None where it names none.
    """

    default: Distance
    single: Distance
    driver: str | None = None
