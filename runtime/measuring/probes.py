"""Probes: small models on one device, cut between two, or on two at once, and their seconds beside their ops.

Legend: D devices.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.device import DeviceIndex, DeviceSpec, hetero_properties
from hsdag.ir.graph.build import graph_of, ordered_ops
from hsdag.runtime.machine.devices import device_calls, infer_checked, infer_unchecked
from hsdag.runtime.measuring.inferences import repeats
from hsdag.runtime.measuring.messages import Beside, Probe, Probed

COUNTERS = {"PERF_COUNT": True}
LEAST_RUNS = 5
"""Least number of inferences of a probe."""
CHANNELS = 64
"""Channels of the small model that runs on two devices at once."""
CROSSING_CHANNELS = 256
"""Channels of tensors that cross, as deep layers have: with fewer, a change of layout takes longer per byte."""


def probe(request: Any, what: Probe) -> Probed:
    """Return the median seconds of a probe beside its ops, with their standard error."""
    with device_calls():
        for _ in range(3):
            infer_checked(request)
        rest_s: list[float] = []
        for _ in repeats(what.runs, what.for_s, LEAST_RUNS):
            begin = time.perf_counter()
            request.infer()
            wall_s = time.perf_counter() - begin
            counters = [c for c in request.profiling_info if c.node_type.lower() != "reorder"]
            rest_s.append(wall_s - sum(c.real_time.total_seconds() for c in counters))
    return Probed(float(np.median(rest_s)), median_error_s(rest_s), 4 * int(np.prod(crossing_shapes(what))))


def probe_request(core: Any, specs: Sequence[DeviceSpec], what: Probe) -> Any:
    """Return a request for a probe's model, of HETERO if there are two devices."""
    names = what.devices
    near, far = names[0], names[-1]
    parameter = placed_node(opset13.parameter(crossing_shapes(what), np.float32, name="x"), near)
    stem = product(parameter, what, near)
    ends = [product(product(stem, what, near), what, far) for _ in range(what.tensors)]
    total = reduce(lambda a, b: placed_node(opset13.add(a, b), far), ends)
    model = ov.Model([placed_node(opset13.result(total), far)], [parameter], "probe")
    target = near if len(names) == 1 else "HETERO:" + ",".join(names)
    kept = hetero_properties(specs) if len(names) > 1 else {}
    return core.compile_model(model, target, {**kept, **COUNTERS}).create_infer_request()


def median_error_s(seconds: Sequence[float]) -> float:
    """Return the standard error of a median: 1.2533 s / sqrt(n), s the interquartile range over 1.349, as if normal."""
    low, high = np.quantile(seconds, [0.25, 0.75])
    return float(1.2533 * (high - low) / 1.349 / np.sqrt(len(seconds)))


def crossing_shapes(what: Probe) -> list[int]:
    """Return the shape of each tensor that crosses."""
    rows = max(1, what.size_bytes // (4 * CROSSING_CHANNELS))
    side = max(1, round(rows**0.5))
    return [1, CROSSING_CHANNELS, side, side] if what.kind == "image" else [1, rows, CROSSING_CHANNELS]


def product(x: Any, what: Probe, device: str, scale: float = 1.0) -> Any:
    """Return a product with a matrix of a probe's kind, placed on a device."""
    weight = scale * np.eye(CROSSING_CHANNELS, dtype=np.float32)
    if what.kind == "image":
        constant = placed_node(opset13.constant(weight.reshape((*weight.shape, 1, 1))), device)
        return placed_node(opset13.convolution(x, constant, [1, 1], [0, 0], [0, 0], [1, 1]), device)
    return placed_node(opset13.matmul(x, placed_node(opset13.constant(weight), device), False, False), device)


def placed_node(node: Any, device: str) -> Any:
    """Return a node after setting the device where HETERO places it."""
    node.get_rt_info()["affinity"] = device
    return node


LEAST_STRETCH_S = 0.04
"""Least seconds for which inferences alone or side by side go on: devices on one core alternate every few ms."""

SIDE, CONVOLUTIONS, CLASSES = 28, 4, 32
"""Sizes of the probe that computes: 200 KB, which stay in the cache, and 58 million operations per convolution."""

STREAMED = 1 << 23
"""Number of elements that the probe of memory reads and writes: 32 MiB each, more than a cache holds."""


def probe_model(kind: str) -> ov.Model:
    """Return the small model of a probe: "compute" is bound by a core's arithmetic, "memory" by memory bandwidth.

    The first has convolutions with rectifiers, a mean over the image, and a product, always with the same weights.
    """
    if kind == "memory":
        parameter = opset13.parameter([STREAMED], np.float32, name="x")
        return ov.Model([opset13.result(opset13.relu(parameter))], [parameter], kind)
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return opset13.constant((rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32))

    parameter = opset13.parameter([1, CHANNELS, SIDE, SIDE], np.float32, name="x")
    node: Any = parameter
    for _ in range(CONVOLUTIONS):
        kernel = weights(CHANNELS, CHANNELS, 3, 3)
        node = opset13.relu(opset13.convolution(node, kernel, [1, 1], [1, 1], [1, 1], [1, 1]))
    mean = opset13.reduce_mean(node, opset13.constant(np.array([2, 3])))
    return ov.Model([opset13.result(opset13.matmul(mean, weights(CLASSES, CHANNELS), False, True))], [parameter], kind)


def times_beside(requests: Sequence[Any], num_whole_devices: int = 0) -> Beside:
    """Measure one window: seconds of an inference of each request alone, then of each pair side by side.

    The last ``num_whole_devices`` run alone only.
    """
    num = len(requests) - num_whole_devices
    beside_s = np.zeros((num, num))
    with device_calls():
        alone_s = [stretch([request])[0] for request in requests]
        for a, b in itertools.combinations(range(num), 2):
            beside_s[a, b], beside_s[b, a] = stretch((requests[a], requests[b]))
    return Beside(tuple(alone_s[:num]), tuple(map(tuple, beside_s.tolist())), tuple(alone_s[num:]))


def stretch(requests: Sequence[Any]) -> list[float]:
    """Return the mean seconds of the inferences of each request while all of them run, one thread each.

    They go on until each has run for LEAST_STRETCH_S, at least once; inferences that outlast another request do not
    count.
    """
    ends_s: list[list[float]] = [[] for _ in requests]
    begins_s: list[float] = []
    ready = threading.Barrier(len(requests), lambda: begins_s.append(time.perf_counter()))

    def run(i: int) -> None:
        ready.wait()
        try:
            while not all(mine and mine[-1] - begins_s[0] >= LEAST_STRETCH_S for mine in ends_s):
                infer_unchecked(requests[i])
                ends_s[i].append(time.perf_counter())
        except BaseException:
            ends_s[i].append(np.inf)  # nobody waits for it
            raise

    with ThreadPoolExecutor(len(requests)) as threads:
        list(threads.map(run, range(len(requests))))  # raises the errors of inferences
    last_s = min(mine[-1] for mine in ends_s)
    counted = [[end_s for end_s in mine if end_s <= last_s] or mine[:1] for mine in ends_s]
    return [(mine[-1] - begins_s[0]) / len(mine) for mine in counted]


STEPS = 4
"""Steps of an inference of the probe of syncs."""


def sync_s(core: Any, specs: Sequence[DeviceSpec], what: Probe) -> float:
    """Return the seconds of a sync of two devices: the least of each step, less those of the slower device's work.

    In each step both devices add the tensors that they have from the step before, and multiply the sum: a part reads
    two tensors and writes one. Without hand-overs, contention and changes of layout nothing would remain.
    """
    from hsdag.runtime.executor.compiling import compile_on  # imported late: it loads numba

    model = _exchanging(what)
    names = (str(node.get_rt_info()["affinity"].value) for _, node in ordered_ops(model))
    devices = DeviceIndex.of(specs).openvino_positions(names)
    steps_s, alone_s = list[Any](), list[list[float]]()
    end_s = time.perf_counter() + what.for_s
    with compile_on(core, model, graph_of(model), specs, devices) as both:
        request = both.create_infer_request()
        requests = [core.compile_model(model, name).create_infer_request() for name in what.devices]
        while len(steps_s) < what.runs and (len(steps_s) < LEAST_RUNS or time.perf_counter() < end_s):
            request.infer()
            steps_s.append(np.diff(np.max([np.sort(request.times[1][both.cut.device == d]) for d in (0, 1)], axis=0)))
            begins_s = [time.perf_counter()]
            for alone in requests:
                alone.infer()
                begins_s.append(time.perf_counter())
            alone_s.append(np.diff(begins_s).tolist())
    work_s = np.min(alone_s, axis=0).max() / (2 * (STEPS + 1))
    return max(float(np.min(steps_s, axis=0).mean() - work_s), 0.0)


def _exchanging(what: Probe) -> ov.Model:
    """Return a model of two lanes, each on a device, that read each other's tensor in every step."""
    near, far = what.devices
    x = placed_node(opset13.parameter(crossing_shapes(what), np.float32, name="x"), near)
    sums = [x, x]
    for step in range(STEPS + 1):  # lanes have different weights, else one device would compute them once
        pairs = zip(sums, what.devices, (0.5, 0.25), strict=True)
        made = [product(total, what, device, scale) for total, device, scale in pairs]
        if step < STEPS:
            sums = [placed_node(opset13.add(*made), device) for device in (near, far)]
    ends = [placed_node(opset13.result(end), device) for end, device in zip(made, what.devices, strict=True)]
    return ov.Model(ends, [x], "sync")
