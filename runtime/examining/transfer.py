"""How a tensor goes from one device to another: whether both can use one place in memory, and what that saves."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.examining.messages import Transfer
from hsdag.runtime.openvino_backend.shared_memory import SharedMemory
from hsdag.runtime.platforms.devices import make_core
from hsdag.runtime.platforms.inference import infer_checked

ELEMENTS = 1 << 20
"""Of the tensor that is handed over: 4 MiB."""

RUNS = 5


def probe_transfer(writer: DeviceSpec, reader: DeviceSpec) -> Transfer:
    """Have both devices add 1, one after the other, through an ordinary tensor and through a shared one.

    Host memory of one GPU's context is any memory to another GPU, which copies it.
    """
    core = make_core((writer, reader))
    ends = [_request(core, spec) for spec in (writer, reader)]
    form = (ov.Type.f32, ov.Shape([ELEMENTS]))
    plain_s, is_right = _run(ends, ov.Tensor(*form))
    gpus = [spec.name for spec in (writer, reader) if spec.plugin.startswith("GPU")]
    shared = SharedMemory(core, (writer, reader)).tensor(0, [1], False, *form)
    if shared is None:  # two CPUs, or a GPU without such memory
        others = [spec.name for spec in (writer, reader) if not spec.plugin.startswith(("CPU", "GPU"))]
        return Transfer("process", (*gpus, *others), plain_s, plain_s, is_right)
    shared_s, is_shared_right = _run(ends, shared)
    return Transfer("host", tuple(gpus[1:]), plain_s, shared_s, is_right and is_shared_right)


def _request(core: Any, spec: DeviceSpec) -> Any:
    given = opset13.parameter([ELEMENTS], np.float32, name="x")
    model = ov.Model([opset13.result(opset13.add(given, opset13.constant(np.float32(1))))], [given], "hand over")
    request = core.compile_model(model, spec.openvino_name).create_infer_request()
    request.get_tensor(request.model_inputs[0]).data[...] = 1.0
    return request


def _run(ends: list[Any], tensor: ov.Tensor) -> tuple[float, bool]:
    """The least seconds of both inferences with a tensor between them, and whether the result is right."""
    writer, reader = ends
    writer.set_tensor(writer.model_outputs[0], tensor)
    reader.set_tensor(reader.model_inputs[0], tensor)
    times_s = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        infer_checked(writer)
        infer_checked(reader)
        times_s.append(time.perf_counter() - begin)
    return min(times_s[1:]), bool(np.all(reader.get_tensor(reader.model_outputs[0]).data == 3.0))
