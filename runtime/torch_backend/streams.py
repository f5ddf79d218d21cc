"""CUDA streams and events, also streams on disjoint sets of a GPU's multiprocessors: green contexts.

Torch's own GreenContext cuts each partition from the whole GPU, so that two of them may be the same
multiprocessors; disjoint ones need the driver's interface, which CUDA builds of torch bring as cuda.bindings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch

from hsdag.runtime.torch_backend.device import LogicalDevice

CAPTURE_PRIORITY = -1
"""That of the streams that torch keeps apart from those of the usual priority, 0."""


def new_stream(gpu: torch.device) -> torch.cuda.Stream:
    """A stream on a GPU, one of the 32 that torch hands out in turn: of more than that, some are the same."""
    return torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]


def new_capture_stream(gpu: torch.device) -> torch.cuda.Stream:
    """A stream to capture on, of 32 others that torch hands out in turn: ``new_stream`` never gives one of them."""
    return torch.cuda.Stream(gpu, priority=CAPTURE_PRIORITY)  # type: ignore[no-untyped-call]


def new_event() -> torch.cuda.Event:
    """An event without times."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def has_passed(event: torch.cuda.Event) -> bool:
    """Whether all that was enqueued before an event was recorded has ended. Raises RuntimeError where it failed."""
    return bool(event.query())  # type: ignore[no-untyped-call]


def partition_streams(
    devices: Sequence[LogicalDevice], *, for_capture: bool = False
) -> tuple[dict[str, torch.cuda.Stream], str]:
    """A stream by device name for the devices with a share, and a sentence on what was done.

    The streams stay for the life of the process; those ``for_capture`` are others, on the same multiprocessors. Where
    green contexts cannot be had the answer is empty, and the sentence says why.
    """
    shared = tuple(device for device in devices if device.is_cuda and device.share is not None)
    return _partition(shared, for_capture) if shared else ({}, "no device asks for a share of a GPU")


@cache
def _partition(
    shared: tuple[LogicalDevice, ...],
    for_capture: bool,  # noqa: ARG001 - keeps the answers apart
) -> tuple[dict[str, torch.cuda.Stream], str]:
    """Made once for the same devices: contexts are dear, and are never given back."""
    try:
        driver = import_module("cuda.bindings.driver")
    except ImportError:
        return {}, "cuda.bindings is not installed, so devices on one GPU share its multiprocessors"
    streams: dict[str, torch.cuda.Stream] = {}
    try:
        for physical in sorted({device.torch_device for device in shared}):
            streams |= _split(driver, physical, [device for device in shared if device.torch_device == physical])
    except (RuntimeError, AttributeError, TypeError) as error:
        return {}, f"green contexts are not to be had ({error}), so devices on one GPU share its multiprocessors"
    return streams, f"{len(streams)} devices have multiprocessors of their own"


def _split(driver: Any, physical: str, devices: Sequence[LogicalDevice]) -> dict[str, torch.cuda.Stream]:
    """The whole GPU in one split into its smallest groups, as many of them to each device as its share allows.

    The driver neither splits a group again nor joins groups of several splits into one context.
    """
    torch.zeros(1, device=physical)  # the primary context must be there
    handle = _checked(driver.cuDeviceGet(torch.device(physical).index))[0]
    whole = _checked(driver.cuDeviceGetDevResource(handle, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))[0]
    count = int(_checked(driver.cuDevSmResourceSplitByCount(0, whole, 0, 1))[1])  # only counted
    groups = _checked(driver.cuDevSmResourceSplitByCount(count, whole, 0, 1))[0]
    streams: dict[str, torch.cuda.Stream] = {}
    first = 0
    for device, num_groups in zip(
        devices, group_counts([device.share or 0.0 for device in devices], count), strict=True
    ):
        mine = groups[first : first + num_groups]
        first += num_groups
        description = _checked(driver.cuDevResourceGenerateDesc(mine, num_groups))[0]
        flags = int(driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        context = _checked(driver.cuGreenCtxCreate(description, handle, flags))[0]
        kind = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        stream = _checked(driver.cuGreenCtxStreamCreate(context, kind, 0))[0]
        streams[device.name] = torch.cuda.ExternalStream(int(stream), device=physical)  # type: ignore[no-untyped-call]
        _try(streams[device.name])
    return streams


def group_counts(shares: Sequence[float], count: int) -> list[int]:
    """How many of ``count`` equal groups go to each share, rounded down, at least one.

    Raises RuntimeError where that is more than there are.
    """
    found = [max(1, int(share * count + 1e-9)) for share in shares]  # so that 3 times a third is all of them
    if sum(found) > count:
        raise RuntimeError(f"the shares come to {sum(found)} groups of multiprocessors, but the GPU has {count}")
    return found


def _try(stream: torch.cuda.Stream) -> None:
    """Compute and record an event; raises RuntimeError where torch cannot use the stream."""
    with torch.cuda.stream(stream):
        done = torch.ones(1, device=stream.device) + 1
        passed = new_event()
        passed.record(stream)
        passed.synchronize()
        del done


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a driver call gave; raises RuntimeError with the driver's code where it failed."""
    code, *values = answer
    if int(code) != 0:
        raise RuntimeError(f"the CUDA driver returned {code}")
    return tuple(values)
