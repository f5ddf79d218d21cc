"""Candidates: compiled ways to run a model, and what is known of one once it is compiled. Legend: N ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement.placement import ExecutorName
from hsdag.ir.shards.regions import Region


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
        of_ops = tuple(order[d] for d in devices)
        return Candidate(",".join(order), of_ops, executor="work-conserving", regions=tuple(regions))

    @staticmethod
    def placed(devices: Sequence[str]) -> Candidate:
        """A placement, by OpenVINO's device name per op; for the device alone where there is only one."""
        used = tuple(dict.fromkeys(devices))
        if len(used) == 1:
            return Candidate(used[0])
        return Candidate("HETERO:" + ",".join(used), tuple(devices))

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
        ranks = tuple(priority) if priority is not None else None
        return Candidate(",".join(used), tuple(devices), executor=executor, priority=ranks, by_load=by_load)


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
