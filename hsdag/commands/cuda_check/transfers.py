"""Transfers and overlap: what goes from device to device and how fast, and whether two devices work at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from hsdag.commands.cuda_check.checks import Untestable
from hsdag.commands.cuda_check.modes import LIMIT_S, size_on
from hsdag.runtime.torch_backend import Feed, LogicalDevice, TorchExecutor, TorchGraph, TorchNode, build_program
from hsdag.runtime.torch_backend.transfer import transfer_between

COPIED = 1 << 22
"""Bytes of a timed copy."""

RUNS, PRODUCTS = 5, 8
BUSY_S = 0.05
"""How long devices are kept busy at least, to see whether they work at once."""

SHOWN_PAIRS = 6


def _gpus(devices: Sequence[LogicalDevice]) -> list[LogicalDevice]:
    """One device for each GPU."""
    return list({device.torch_device: device for device in reversed(devices) if device.is_cuda}.values())[::-1]


def peer_access(devices: Sequence[LogicalDevice]) -> str:
    """Which GPUs reach each other's memory."""
    gpus = _gpus(devices)
    if len(gpus) < 2:
        raise Untestable(f"peer access needs two GPUs, and there {_are(len(gpus))} among the devices")
    found = []
    for a, b in itertools.permutations(gpus, 2):
        reaches = torch.cuda.can_device_access_peer(a.physical, b.physical)
        found.append(f"{a.torch_device} {'reaches' if reaches else 'does not reach'} {b.torch_device}")
    return "; ".join(found)


def copies(devices: Sequence[LogicalDevice]) -> str:
    """Every ordered pair of devices: what arrives is what was sent; the route, latency and bandwidth."""
    if len(devices) < 2:
        raise Untestable("copies need two devices")
    found = []
    for source, destination in itertools.permutations(devices, 2):
        small_s, large_s = (_copy_s(source, destination, size) for size in (64, COPIED))
        route = transfer_between(source, destination, share=False).route.name.lower()
        rate = COPIED / max(large_s, 1e-9) / 1e9
        found.append(f"{source.name}->{destination.name} {route} {1e6 * small_s:.0f} us, {rate:.1f} GB/s")
    more = f"; {len(found) - SHOWN_PAIRS} more pairs" if len(found) > SHOWN_PAIRS else ""
    return "; ".join(found[:SHOWN_PAIRS]) + more


def _copy_s(source: LogicalDevice, destination: LogicalDevice, size_bytes: int) -> float:
    """Seconds of a copy; asserts that it is exact."""
    sent = TorchNode("sent", feed=Feed("sent", torch.uint8, (size_bytes,)), output_bytes=(float(size_bytes),))
    read = TorchNode("read", "Add", ((0, 0),), lambda xs: (xs[0] + 1,))
    program = build_program(TorchGraph("copy", (sent, read), {"read": (1, 0)}), [0, 1], [source, destination])
    given = np.random.default_rng(0).integers(0, 256, size_bytes, dtype=np.uint8)
    with TorchExecutor(program) as executor:
        executor.load({"sent": given})
        arrived = executor.infer(limit_s=LIMIT_S)["read"].cpu().numpy()
        assert np.array_equal(arrived, given + 1), f"a copy from {source.name} to {destination.name} is damaged"
        spans = [run.timeline.transfers for run in executor.repeated(RUNS, limit_s=LIMIT_S)]
    return float(min((each.end_s - each.start_s).sum() for each in spans))


def overlap(devices: Sequence[LogicalDevice]) -> str:
    """Products on two devices at once: whether they overlap in time, and what that gains over one after the other."""
    if len(devices) < 2:
        raise Untestable("overlap needs two devices")
    pair = (_gpus(devices) if len(_gpus(devices)) > 1 else list(devices))[:2]
    count = PRODUCTS
    while (first := _products(pair[:1], count))[0] < BUSY_S:
        count *= 4
    alone_s, (both_s, shared) = first[0] + _products(pair[1:], count)[0], _products(pair, count)
    assert shared > 0.5, (
        f"{pair[0].name} and {pair[1].name} were busy together for only {100 * shared:.0f}% of the time"
    )
    gain = alone_s / both_s
    return f"{pair[0].name} and {pair[1].name}: {gain:.2f} times as fast as in turn, busy together {100 * shared:.0f}%"


def _products(devices: Sequence[LogicalDevice], count: int) -> tuple[float, float]:
    """The least makespan of ``count`` products, one after another, on each device at once; when all of them are busy.

    That is a share of the makespan.
    """
    size = size_on(devices)
    nodes: list[TorchNode] = []
    placement: list[int] = []
    for d in range(len(devices)):
        first = len(nodes)
        nodes.append(TorchNode(f"x{d}", feed=Feed("x", torch.float32, (size, size))))
        nodes += [
            TorchNode(f"y{d}.{i}", "MatMul", ((first + i, 0), (first, 0)), lambda xs: (xs[0] @ xs[1],))
            for i in range(count)
        ]
        placement += [d] * (count + 1)
    outputs = {f"y{d}": ((d + 1) * (count + 1) - 1, 0) for d in range(len(devices))}
    program = build_program(TorchGraph("products", tuple(nodes), outputs), placement, devices)
    with TorchExecutor(program) as executor:
        executor.load({"x": torch.eye(size)})
        executor.infer(limit_s=LIMIT_S)
        run = min(executor.repeated(RUNS, limit_s=LIMIT_S), key=lambda each: each.makespan_s)
    ran = run.timeline.ops
    starts = [float(ran.start_s[ran.device == d].min()) for d in range(len(devices))]
    ends = [float(ran.end_s[ran.device == d].max()) for d in range(len(devices))]
    return run.makespan_s, max(min(ends) - max(starts), 0.0) / (max(ends) - min(starts))


def _are(count: int) -> str:
    return "is one" if count == 1 else "is none" if count == 0 else f"are {count}"
