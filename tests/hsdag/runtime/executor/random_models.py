"""Random small models of the ops that are hard to cut, as programs over a pool of results that hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from hypothesis import strategies as st
from openvino import opset13 as op

SIDE, MOST_CHANNELS = 6, 8
SAME = ([1, 1], [1, 1], [1, 1], [1, 1])
Shared = dict[tuple[bool, int], Any]


def channels_of(*results: Any) -> int:
    """Of [1, C, 6, 6], together."""
    return sum(int(x.get_shape()[1]) for x in results)


def convolve(x: Any, b: int, shared: Shared) -> Any:
    """By weights [4, C, 3, 3], one constant for all convolutions that fit, f16 with a Convert that restores it."""
    key = bool(b % 2), channels_of(x)
    if key not in shared:
        values = np.random.default_rng(b).standard_normal((4, key[1], 3, 3)) / (3 * key[1] ** 0.5)
        shared[key] = op.constant(values.astype(np.float16 if key[0] else np.float32))
        shared[key] = op.convert(shared[key], "f32") if key[0] else shared[key]
    return op.convolution(x, shared[key], *SAME)


def join(x: Any, y: Any, b: int) -> list[Any]:
    """The sum, or both beside each other, with the first one twice where there is room."""
    if channels_of(x) == channels_of(y) and b % 2:
        return [op.add(x, y)]
    parts = [x, y, x] if channels_of(x, y, x) <= MOST_CHANNELS else [x, y]
    return [op.concat(parts, 1)] if channels_of(*parts) <= MOST_CHANNELS else []


def reshape(x: Any, y: Any) -> Any:
    """Flat and back, by arithmetic on the shapes of other results."""
    batch = op.gather(op.shape_of(y), op.constant([0]), op.constant(0))
    flat = op.reshape(x, op.concat([batch, op.constant([-1])], 0), special_zero=False)
    return op.reshape(op.relu(flat), op.shape_of(x), special_zero=False)


def best(x: Any, b: int) -> list[Any]:
    """An op with two outputs of different types."""
    found = op.topk(x, op.constant(SIDE), 3, "max", "value")
    index = op.multiply(op.convert(found.output(1), "f32"), op.constant(np.float32(0.1)))
    return [found.output(0), index][: 1 + b % 2]


def count_nonzero(x: Any, y: Any) -> Any:
    """A result whose shape depends on the data, and arithmetic on that shape."""
    count = op.gather(op.shape_of(op.non_zero(op.relu(x))), op.constant([1]), op.constant(0))
    return op.add(y, op.multiply(op.convert(count, "f32"), op.constant(np.float32(1e-3))))


STEPS: tuple[Callable[[Any, Any, int, Shared], list[Any]], ...] = (
    lambda x, _, b, shared: [convolve(x, b, shared)],
    lambda x, _, b, __: [(op.relu, op.tanh, op.sigmoid)[b % 3](x)],
    lambda x, y, b, _: join(x, y, b),
    lambda x, *_: op.split(x, op.constant(1), 2).outputs() if channels_of(x) in (4, 6, 8) else [],
    lambda x, *_: [op.multiply(x, x)],  # one reader reads twice
    lambda x, *_: [op.matmul(x, op.constant(np.eye(SIDE, k=1, dtype=np.float32)), False, False)],
    lambda x, y, *_: [reshape(x, y)],
    lambda x, _, b, __: best(x, b),
    lambda x, y, *_: [count_nonzero(x, y)],
)


def build(num_inputs: int, steps: list[tuple[int, int, int]], ends: list[int], extras: int) -> ov.Model:
    inputs = [op.parameter([1, 4, SIDE, SIDE], np.float32, name=f"x{k}") for k in range(num_inputs)]
    pool: list[Any] = [node.output(0) for node in inputs]
    shared: Shared = {}
    for step, a, b in steps:
        made = STEPS[step](pool[a % len(pool)], pool[b % len(pool)], b, shared)
        pool += [node.output(0) if isinstance(node, ov.Node) else node for node in made]
    results = [op.result(pool[-1 - k % len(pool)]) for k in ends]
    if extras & 1:
        results.append(op.result(inputs[0]))
    if extras & 2:
        results.insert(0, op.result(op.constant(np.arange(3, dtype=np.float32))))
    return ov.Model(results, inputs, "drawn")


_number = st.integers(0, 9)
_steps = st.lists(st.tuples(st.integers(0, len(STEPS) - 1), _number, _number), min_size=2, max_size=9)

models: st.SearchStrategy[ov.Model] = st.builds(
    build, st.integers(1, 2), _steps, st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 3)
)
"""Models of one or two inputs; their results may be inputs, constants, or several times the same."""
