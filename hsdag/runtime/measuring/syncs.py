"""Syncs: what it takes two devices to exchange tensors under the work-conserving executor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of, ordered_ops
from hsdag.runtime.executor.compiling import compile_on
from hsdag.runtime.measuring.messages import Probe
from hsdag.runtime.measuring.probes import placed_node, product, shape_of

STEPS, LEAST_RUNS = 4, 5
"""Syncs of an inference of the probe, and its inferences."""


def sync_s(core: Any, specs: Sequence[DeviceSpec], what: Probe) -> float:
    """Seconds of a sync of two devices: the least of each step, less that of the slower device's work.

    In each step both devices add the tensors that they have from the step before, and multiply the sum: a part reads
    two tensors and writes one. Without hand-overs, contention and changes of layout nothing would remain.
    """
    model = _exchanging(what)
    devices = [str(node.get_rt_info()["affinity"].value) for _, node in ordered_ops(model)]
    steps_s, alone_s, end_s = list[Any](), list[list[float]](), time.perf_counter() + what.for_s
    with compile_on(core, model, graph_of(model), specs, devices) as both:
        request, lanes = both.create_infer_request(), both.cut.device
        requests = [core.compile_model(model, name).create_infer_request() for name in what.devices]
        while len(steps_s) < what.runs and (len(steps_s) < LEAST_RUNS or time.perf_counter() < end_s):
            request.infer()
            steps_s.append(np.diff(np.max([np.sort(request.times[1][lanes == d]) for d in (0, 1)], axis=0)))
            begins_s = [time.perf_counter()]
            for each in requests:
                each.infer()
                begins_s.append(time.perf_counter())
            alone_s.append(np.diff(begins_s).tolist())
    own_s = np.min(alone_s, axis=0).max() / (2 * (STEPS + 1))
    return max(float(np.min(steps_s, axis=0).mean() - own_s), 0.0)


def _exchanging(what: Probe) -> ov.Model:
    """A model of two lanes, each on a device, that read each other's tensor in every step."""
    near, far = what.devices
    x = placed_node(opset13.parameter(shape_of(what), np.float32, name="x"), near)
    sums = [x, x]
    for step in range(STEPS + 1):  # lanes have weights of their own, else one device would compute them once
        pairs = zip(sums, what.devices, (0.5, 0.25), strict=True)
        made = [product(total, what.kind, device, scale) for total, device, scale in pairs]
        if step < STEPS:
            sums = [placed_node(opset13.add(*made), device) for device in (near, far)]
    ends = [placed_node(opset13.result(each), device) for each, device in zip(made, what.devices, strict=True)]
    return ov.Model(ends, [x], "sync")
