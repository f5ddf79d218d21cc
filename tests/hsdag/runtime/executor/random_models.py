"""Random small models of the ops that are hard to cut, as programs over a pool of results that hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from hypothesis import strategies as st
from openvino import opset13 as op

SIDE = 6
SAME = ([1, 1], [1, 1], [1, 1], [1, 1])


class Program:
    """A model in the making: a pool of [1, C, 6, 6] results, and weights that several ops share."""

    def __init__(self, num_inputs: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs = [op.parameter([1, 4, SIDE, SIDE], np.float32, name=f"x{k}") for k in range(num_inputs)]
        self.pool: list[Any] = [node.output(0) for node in self.inputs]
        self.shared: dict[tuple[str, int], Any] = {}

    def pick(self, k: int) -> Any:
        return self.pool[k % len(self.pool)]

    def put(self, *nodes: Any) -> None:
        self.pool += [out for node in nodes for out in (node.outputs() if isinstance(node, ov.Node) else [node])]

    def weights(self, channels: int, dtype: type) -> Any:
        """[4, C, 3, 3], one constant for all convolutions that fit, f16 with a Convert that restores it."""
        key = (np.dtype(dtype).name, channels)
        if key not in self.shared:
            values = self.rng.standard_normal((4, channels, 3, 3)) / (3 * channels**0.5)
            constant = op.constant(values.astype(dtype))
            self.shared[key] = constant if dtype is np.float32 else op.convert(constant, "f32")
        return self.shared[key]


Step = Callable[[Program, int, int], None]


def channels_of(x: Any) -> int:
    return int(x.get_shape()[1])


def convolve(p: Program, a: int, b: int) -> None:
    x = p.pick(a)
    p.put(op.convolution(x, p.weights(channels_of(x), np.float16 if b % 2 else np.float32), *SAME))


def activate(p: Program, a: int, b: int) -> None:
    p.put((op.relu, op.tanh, op.sigmoid)[b % 3](p.pick(a)))


def join(p: Program, a: int, b: int) -> None:
    x, y = p.pick(a), p.pick(b)
    if channels_of(x) == channels_of(y):
        p.put(op.add(x, y))
    elif channels_of(x) + channels_of(y) <= 8:
        p.put(op.concat([x, y], 1))


def concatenate(p: Program, a: int, b: int) -> None:
    x, y = p.pick(a), p.pick(b)
    if channels_of(x) + channels_of(y) <= 8:
        p.put(op.concat([x, y, x], 1) if 2 * channels_of(x) + channels_of(y) <= 8 else op.concat([x, y], 1))


def split(p: Program, a: int, b: int) -> None:
    """Two outputs, of which one may never be read."""
    x = p.pick(a)
    if channels_of(x) % 2 == 0 and channels_of(x) > 2:
        p.put(op.split(x, op.constant(1), 2))


def square(p: Program, a: int, b: int) -> None:
    """One reader reads twice."""
    x = op.tanh(p.pick(a))
    p.put(op.multiply(x, x))


def multiply_matrices(p: Program, a: int, b: int) -> None:
    x, y = p.pick(a), p.pick(b)
    if channels_of(x) == channels_of(y) and b % 3:
        p.put(op.tanh(op.matmul(x, y, False, True)))
    else:
        matrix = p.rng.standard_normal((SIDE, SIDE)).astype(np.float32) / SIDE
        p.put(op.matmul(x, op.constant(matrix), False, False))


def reshape(p: Program, a: int, b: int) -> None:
    """Flat and back, by arithmetic on the shapes of other results."""
    x, y = p.pick(a), p.pick(b)
    batch = op.gather(op.shape_of(y), op.constant([0]), op.constant(0))
    flat = op.reshape(x, op.concat([batch, op.constant([-1])], 0), special_zero=False)
    p.put(op.reshape(op.relu(flat), op.shape_of(x), special_zero=False))


def best(p: Program, a: int, b: int) -> None:
    """An op with two outputs of different types."""
    found = op.topk(p.pick(a), op.constant(SIDE), 3, "max", "value")
    p.put(found.output(0))
    if b % 2:
        p.put(op.multiply(op.convert(found.output(1), "f32"), op.constant(np.float32(0.1))))


def count_nonzero(p: Program, a: int, b: int) -> None:
    """A result whose shape depends on the data, and arithmetic on that shape."""
    x, y = p.pick(a), p.pick(b)
    where = op.non_zero(op.relu(x))
    count = op.convert(op.gather(op.shape_of(where), op.constant([1]), op.constant(0)), "f32")
    mean = op.reduce_sum(op.convert(where, "f32"), op.constant([0, 1]), keep_dims=False)
    p.put(op.add(y, op.multiply(op.add(count, mean), op.constant(np.float32(1e-3)))))


def pool(p: Program, a: int, b: int) -> None:
    p.put(op.max_pool(p.pick(a), [1, 1], [1, 1], [1, 1], [1, 1], [3, 3], "floor", "explicit", "i64").output(0))


STEPS: tuple[Step, ...] = (
    convolve,
    activate,
    join,
    concatenate,
    split,
    square,
    multiply_matrices,
    reshape,
    best,
    count_nonzero,
    pool,
)


def build(num_inputs: int, steps: list[tuple[int, int, int]], ends: list[int], extras: int, seed: int) -> ov.Model:
    program = Program(num_inputs, seed)
    for step, a, b in steps:
        STEPS[step](program, a, b)
    results = [op.result(program.pick(-1 - k)) for k in ends]
    if extras & 1:
        results.append(op.result(program.inputs[0]))
    if extras & 2:
        results.insert(0, op.result(op.constant(np.arange(3, dtype=np.float32))))
    return ov.Model(results, program.inputs, "drawn")


_number = st.integers(0, 9)
_steps = st.lists(st.tuples(st.integers(0, len(STEPS) - 1), _number, _number), min_size=2, max_size=9)

models: st.SearchStrategy[ov.Model] = st.builds(
    build, st.integers(1, 2), _steps, st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 3), _number
)
"""Models of one or two inputs; their results may be inputs, constants, or several times the same."""
