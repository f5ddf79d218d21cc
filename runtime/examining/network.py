"""A small network of convolutions and products, on whose outputs the precision of a device shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

CHANNELS, SIDE, LAYERS, CLASSES = 16, 16, 4, 32


def network() -> ov.Model:
    """Convolutions with rectifiers, a mean over the image, and a product; the weights are always the same."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        fan_in = np.prod(shape[1:])
        return opset13.constant((rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32))

    given = opset13.parameter([1, CHANNELS, SIDE, SIDE], np.float32, name="x")
    node: Any = given
    for _ in range(LAYERS):
        kernel = weights(CHANNELS, CHANNELS, 3, 3)
        node = opset13.relu(opset13.convolution(node, kernel, [1, 1], [1, 1], [1, 1], [1, 1]))
    mean = opset13.reduce_mean(node, opset13.constant(np.array([2, 3])))
    scores = opset13.matmul(mean, weights(CLASSES, CHANNELS), False, True)
    return ov.Model([opset13.result(scores)], [given], "probe")
