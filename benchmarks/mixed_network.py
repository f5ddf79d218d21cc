"""A model of which no single device is best for all parts: convolutions, chains of functions, wide average pools."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13


def mixed_model(size: int = 64, convolutions: int = 12, functions: int = 24, pools: int = 2) -> ov.Model:
    """Two branches over an image [1, 16, size, size]: convolutions and pools, and tangents of arc tangents."""
    rng = np.random.default_rng(0)
    image = opset13.parameter([1, 16, size, size], np.float32, name="image")
    stem = opset13.relu(image, name="stem")
    filtered = stem
    for k in range(convolutions):
        weight = opset13.constant((0.1 * rng.standard_normal((16, 16, 3, 3))).astype(np.float32))
        filtered = opset13.convolution(filtered, weight, [1, 1], [1, 1], [1, 1], [1, 1], name=f"convolution{k}")
        filtered = opset13.relu(filtered, name=f"relu{k}")
    for k in range(pools):
        filtered = opset13.avg_pool(filtered, [1, 1], [7, 7], [7, 7], [15, 15], False, name=f"pool{k}")
    chain = stem
    for k in range(functions):
        chain = (opset13.tan if k % 2 else opset13.atan)(chain, name=f"function{k}")
    joined = opset13.add(filtered, chain, name="joined")
    answer = opset13.reduce_mean(joined, np.array([2, 3]), name="answer")
    return ov.Model([opset13.result(answer)], [image], "mixed")
