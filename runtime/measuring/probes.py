"""Probes: small models on one device, cut between two, or on two at once, and what they take beside their ops.

Legend: D devices.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.runtime.machine.devices import device_calls, infer_checked, infer_unchecked, make_core
from hsdag.runtime.measuring.messages import Probe, Probed, TimesBeside, Transfer

COUNTERS = {"PERF_COUNT": True}
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
    from hsdag.runtime.executor.openvino_backend import SharedMemory  # only here: its package takes long to load

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


LEAST_ROUNDS, MOST_ROUNDS = 4, 8
LEAST_STRETCH_S = 0.04
"""Inferences alone, or side by side, go on for at least this long: devices that share a core take turns of a few ms."""

SIDE, CONVOLUTIONS, CLASSES = 28, 4, 32
"""Of the probe that computes: 200 KB that stay in the cache, 58 million operations for each convolution."""

STREAMED = 1 << 23
"""Elements that the probe of the memory reads and writes: 32 MiB each, more than a cache keeps."""


def probe_model(kind: str) -> ov.Model:
    """The small model of a probe: "compute" is bound by what a core computes, "memory" by what memory delivers.

    The first one has convolutions with rectifiers, a mean over the image, and a product, always with the same weights.
    """
    if kind == "memory":
        given = opset13.parameter([STREAMED], np.float32, name="x")
        return ov.Model([opset13.result(opset13.relu(given))], [given], kind)
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        fan_in = np.prod(shape[1:])
        return opset13.constant((rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32))

    given = opset13.parameter([1, CHANNELS, SIDE, SIDE], np.float32, name="x")
    node: Any = given
    for _ in range(CONVOLUTIONS):
        kernel = weights(CHANNELS, CHANNELS, 3, 3)
        node = opset13.relu(opset13.convolution(node, kernel, [1, 1], [1, 1], [1, 1], [1, 1]))
    mean = opset13.reduce_mean(node, opset13.constant(np.array([2, 3])))
    scores = opset13.matmul(mean, weights(CLASSES, CHANNELS), False, True)
    return ov.Model([opset13.result(scores)], [given], kind)


def times_beside(requests: Sequence[Any], for_s: float) -> TimesBeside:
    """[D, D] for each device and another one, by round: seconds of its inference alone, and beside the other's.

    Each pair gets ``for_s`` seconds, but at least LEAST_ROUNDS rounds, of both devices alone and then side by side.
    """
    found: TimesBeside = [[[] for _ in requests] for _ in requests]
    with device_calls():
        for request in requests:
            infer_checked(request)
        for a, b in itertools.combinations(range(len(requests)), 2):
            pair, end_s = (requests[a], requests[b]), time.perf_counter() + for_s
            while len(found[a][b]) < MOST_ROUNDS:
                if len(found[a][b]) >= LEAST_ROUNDS and time.perf_counter() >= end_s:
                    break
                alone_s = [stretch([request])[0] for request in pair]
                both_s = stretch(pair)
                found[a][b].append((alone_s[0], both_s[0]))
                found[b][a].append((alone_s[1], both_s[1]))
    return found


def stretch(requests: Sequence[Any]) -> list[float]:
    """Mean seconds of the inferences of each request while all of them run, one thread each.

    All go on until each has run for LEAST_STRETCH_S, once at least; what outlasts another one does not count.
    """
    ends_s: list[list[float]] = [[] for _ in requests]
    failures: list[BaseException] = []
    ready = threading.Barrier(len(requests))
    begin_s = time.perf_counter()

    def is_done(mine: Sequence[float]) -> bool:
        return bool(mine) and mine[-1] - begin_s >= LEAST_STRETCH_S

    def run(i: int) -> None:
        nonlocal begin_s
        try:
            if ready.wait() == 0:
                begin_s = time.perf_counter()
            while not failures and not all(is_done(mine) for mine in ends_s):
                infer_unchecked(requests[i])
                ends_s[i].append(time.perf_counter())
        except BaseException as failure:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    last_s = min(mine[-1] for mine in ends_s)
    counted = [[end_s for end_s in mine if end_s <= last_s] or mine[:1] for mine in ends_s]
    return [(mine[-1] - begin_s) / len(mine) for mine in counted]


HANDED_BYTES, HANDED_RUNS = 1 << 22, 5
"""Of the tensor that is handed over from one device to another, and how often."""


def probe_transfer(writer: DeviceSpec, reader: DeviceSpec) -> Transfer:
    """Have one device read what the other one has written, through an ordinary tensor and through a shared one.

    Host memory of one GPU's context is any memory to another GPU, which copies it.
    """
    specs = writer, reader
    core, names = make_core(specs), tuple(spec.openvino_name for spec in specs)
    asked = Probe(names, "elementwise", 1, HANDED_BYTES, HANDED_RUNS, 0.0, "ordinary")
    plain, shared = (_handed_over(core, specs, replace(asked, way=way)) for way in ("ordinary", "shared"))
    assert plain is not None
    gpus = [spec.name for spec in specs if spec.plugin.startswith("GPU")]
    if shared is None:  # two CPUs, or a GPU without such memory
        others = [spec.name for spec in specs if not spec.plugin.startswith(("CPU", "GPU"))]
        return Transfer("process", (*gpus, *others), plain[0], plain[0], plain[1])
    return Transfer("host", tuple(gpus[1:]), plain[0], shared[0], plain[1] and shared[1])


def _handed_over(core: Any, specs: Sequence[DeviceSpec], what: Probe) -> tuple[float, bool] | None:
    """The least seconds of both inferences with a tensor between them, and whether the result is right."""
    made = handing_over(core, specs, what)
    if made is None:
        return None
    (writer, reader), infer = made
    writer.get_tensor(writer.model_inputs[0]).data[...] = 2.5
    times_s = []
    for _ in range(what.runs):
        begin = time.perf_counter()
        infer()
        times_s.append(time.perf_counter() - begin)
    infer_checked(reader)
    return min(times_s[1:]), bool(np.all(reader.get_tensor(reader.model_outputs[0]).data == 2.0))
