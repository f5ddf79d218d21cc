"""The worker's part in measuring links: a small model on one device, or cut between two, beside its ops.

What is left of each run's wall time when the counters of its ops are taken away covers launches, conversions of inputs
and outputs, and the crossings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.runtime.measuring.messages import Probe, Probed
from hsdag.runtime.measuring.worker_profile import COUNTERS
from hsdag.runtime.platforms.inference import device_calls, infer_checked

CHANNELS = 64
"""Channels of a probe's tensors."""


def probe(core: Any, specs: Sequence[DeviceSpec], request: Probe) -> Probed | None:
    """Seconds that a probe takes beside its ops, with their standard error; None where it has no such tensors.

    The median; of elementwise ones the least, with their ops: counters of so small ops err by more than these take.
    """
    is_light = request.kind == "elementwise"
    with device_calls():
        run_by = under_hetero if request.way == "hetero" else handing_over
        made = run_by(core, specs, request)
        if made is None:
            return None
        requests, infer = made
        for _ in range(3):
            for each in requests:
                infer_checked(each)
        rest_s: list[float] = []
        end = time.perf_counter() + request.for_s
        while len(rest_s) < request.runs and (len(rest_s) < 5 or time.perf_counter() < end):
            begin = time.perf_counter()
            infer()
            wall_s = time.perf_counter() - begin
            counters = [counter for each in requests for counter in each.profiling_info]
            ops_s = [c.real_time.total_seconds() for c in counters if c.node_type.lower() != "reorder"]
            rest_s.append(wall_s if is_light else wall_s - sum(ops_s))
    typical_s = min(rest_s) if is_light else float(np.median(rest_s))
    return Probed(typical_s, median_error_s(rest_s), 4 * int(np.prod(_shape(request))))


Made = tuple[list[Any], Callable[[], Any]]
"""Requests of a probe, and what runs them all."""


def under_hetero(core: Any, specs: Sequence[DeviceSpec], what: Probe) -> Made:
    """The whole as one request, of HETERO where there are two devices."""
    names = what.devices
    given, halfway = _first_half(what)
    model = ov.Model(_second_half(what, halfway), [given], "probe")
    target = names[0] if len(names) == 1 else "HETERO:" + ",".join(names)
    kept = hetero_properties(specs) if len(names) > 1 else {}
    request = core.compile_model(model, target, {**kept, **COUNTERS}).create_infer_request()
    return [request], request.infer


def handing_over(core: Any, specs: Sequence[DeviceSpec], what: Probe) -> Made | None:
    """The halves as requests of their own; None where no memory spares copies."""
    from hsdag.runtime.openvino_backend.shared_memory import SharedMemory  # only here: its package takes long to load

    given, halfway = _first_half(what)
    entries = [opset13.parameter(_shape(what), np.float32) for _ in halfway]
    for k, entry in enumerate(entries):
        entry.output(0).set_names({f"entry {k}"})
        halfway[k].output(0).set_names({f"end {k}"})
    halves = (ov.Model(halfway, [given], "first half"), ov.Model(_second_half(what, entries), entries, "second half"))
    writer, reader = (
        core.compile_model(half, name, COUNTERS).create_infer_request()
        for half, name in zip(halves, what.devices, strict=True)
    )
    memory = SharedMemory(core, [spec for name in what.devices for spec in specs if spec.openvino_name == name])
    tensor: Any = None
    for k in range(what.tensors):
        tensor = writer.get_tensor(f"end {k}")
        if what.way == "shared":
            tensor = memory.tensor(0, [1], False, tensor.element_type, tensor.shape)
        if tensor is None:
            return None
        writer.set_tensor(f"end {k}", tensor)
        reader.set_tensor(f"entry {k}", tensor)
    is_remote = isinstance(tensor, ov.RemoteTensor)  # cannot be shown after infer()

    def infer() -> None:
        if is_remote:
            infer_checked(writer)
        else:
            writer.infer()
        reader.infer()

    return [writer, reader], infer


def median_error_s(seconds: Sequence[float]) -> float:
    """Standard error of a median: 1.2533 s / sqrt(n), s the interquartile range over 1.349, as of normal samples."""
    low, high = np.quantile(seconds, [0.25, 0.75])
    return float(1.2533 * (high - low) / 1.349 / np.sqrt(len(seconds)))


def _shape(what: Probe) -> list[int]:
    """Of each tensor that crosses."""
    rows = max(1, what.size_bytes // (4 * CHANNELS))
    side = max(1, round(rows**0.5))
    return [1, CHANNELS, side, side] if what.kind == "image" else [1, rows, CHANNELS]


def _first_half(what: Probe) -> tuple[Any, list[Any]]:
    """The input, a product of it, and ``tensors`` products of that."""
    near = what.devices[0]
    given = opset13.parameter(_shape(what), np.float32, name="x")
    given.get_rt_info()["affinity"] = near
    stem = _product(given, what.kind, near)
    return given, [_product(stem, what.kind, near) for _ in range(what.tensors)]


def _second_half(what: Probe, halfway: Sequence[Any]) -> list[Any]:
    """A product of each, added up."""
    far = what.devices[-1]
    ends = [_product(x, what.kind, far) for x in halfway]
    total = ends[0]
    for end in ends[1:]:
        total = opset13.add(total, end)
        total.get_rt_info()["affinity"] = far
    result = opset13.result(total)
    result.get_rt_info()["affinity"] = far
    return [result]


def _product(x: Any, kind: str, device: str) -> Any:
    if kind == "elementwise":
        node = opset13.floor(x)
        node.get_rt_info()["affinity"] = device
        return node
    weight = np.eye(CHANNELS, dtype=np.float32)
    if kind == "image":
        constant = opset13.constant(weight.reshape((CHANNELS, CHANNELS, 1, 1)))
        node = opset13.convolution(x, constant, [1, 1], [0, 0], [0, 0], [1, 1])
    else:
        constant = opset13.constant(weight)
        node = opset13.matmul(x, constant, False, False)
    for made in (constant, node):
        made.get_rt_info()["affinity"] = device
    return node
