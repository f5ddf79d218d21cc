"""Probes: what it takes to send tensors from one torch device to another, and to start ops."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from hsdag.evaluators.torch.requests import TorchRequest
from hsdag.runtime.measuring.messages import Probed
from hsdag.runtime.measuring.probes import median_error_s
from hsdag.runtime.torch_backend import (
    Feed,
    LogicalDevice,
    Program,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    build_program,
)

SENT = "sent"


def probe_program(devices: Sequence[LogicalDevice], tensors: int, size_bytes: int) -> Program:
    """An op on the first device that makes ``tensors`` tensors, and one on the last that reads them all."""
    size = float(size_bytes)
    given = TorchNode("x", feed=Feed(SENT, torch.uint8, (size_bytes,)), output_bytes=(size,))
    near = TorchNode(
        "near",
        "Split",
        ((0, 0),),
        lambda xs: tuple(xs[0].clone() for _ in range(tensors)),
        output_bytes=(size,) * tensors,
    )
    far = TorchNode("far", "Concat", tuple((1, k) for k in range(tensors)), lambda xs: (xs[0][:1].clone(),))
    return build_program(TorchGraph("probe", (given, near, far), {"y": (2, 0)}), [0, 0, len(devices) - 1], devices)


def probed(program: Program, runs: int, for_s: float) -> Probed:
    """What a probe's inferences take beside its two ops: the median and its standard error, and bytes of a tensor."""
    (feed,) = program.feeds.values()
    rest_s: list[float] = []
    with TorchExecutor(program) as executor:
        executor.load({SENT: np.zeros(feed.shape, dtype=np.uint8)})
        request = TorchRequest(executor, None)
        for _ in range(3):
            request.infer()
        end_s = time.perf_counter() + for_s
        while len(rest_s) < runs and (len(rest_s) < 5 or time.perf_counter() < end_s):
            request.infer()
            ops = request.timeline.ops
            rest_s.append(request.latency - float((ops.end_s - ops.start_s).sum()))
    return Probed(float(np.median(rest_s)), median_error_s(rest_s), feed.shape[0])
