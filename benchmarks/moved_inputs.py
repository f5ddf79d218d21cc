"""Inputs that differ by a rounding, to see by how much a model jumps: no device can be asked to be nearer than that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

ROUNDING = {"f32": 2.0**-22, "bf16": 2.0**-9}
"""By which an input is moved, relative to itself."""


def moved_inputs(inputs: list[Any], precision: str, count: int) -> Iterator[list[Any]]:
    """``count`` times these inputs, each floating number of which is a rounding of ``precision`` apart at most."""
    rng, most = np.random.default_rng(0), ROUNDING[precision]
    for _ in range(count):
        noise = [most * rng.uniform(-1, 1, array.shape) for array in inputs]
        pairs = zip(inputs, noise, strict=True)
        yield [a if a.dtype.kind != "f" else (a * (1 + by)).astype(a.dtype) for a, by in pairs]
