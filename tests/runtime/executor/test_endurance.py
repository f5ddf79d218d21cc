"""Endurance: many inferences of a tiny model take no more memory."""

from __future__ import annotations

import gc

import numpy as np
import openvino as ov
import psutil
import pytest
from openvino import opset13 as op

import hsdag
from hsdag.runtime.executor.requests import WorkConservingModel
from tests.runtime.executor.placing import alternating

MOST_GROWTH_BYTES = 8 * 2**20
"""The allocator keeps some; what 1,000 inferences lost of their 400 KB each would be 400 MB."""


def model() -> ov.Model:
    """A chain whose results of 100 KB go from device to device."""
    x = op.parameter([1, 25_000], np.float32, name="x")
    node = x
    for _ in range(4):
        node = op.tanh(op.relu(node))
    return ov.Model([op.result(node)], [x], "chain")


def used_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def growth_bytes(compiled: WorkConservingModel, inferences: int) -> int:
    """What memory grows by, after a warm-up of as many."""
    x = np.ones((1, 25_000), dtype=np.float32)
    requests = [compiled.create_infer_request() for _ in range(2)]
    before = 0
    for warm in (True, False):
        before = used_bytes() if not warm else before
        for _ in range(inferences // 2):
            for request in requests:
                request.start_async(x)
            for request in requests:
                request.wait()
                _ = request.results
    return used_bytes() - before


@pytest.mark.slow
def test_inferences_take_no_more_memory(core: ov.Core) -> None:
    placed_model = model()
    with hsdag.compile_work_conserving(placed_model, alternating(placed_model), core) as compiled:
        assert growth_bytes(compiled, 1000) <= MOST_GROWTH_BYTES
