"""Random models in which submodels wait for each other: several inputs, splits, constants, results read twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray


def random_model(rng: np.random.Generator, num_ops: int) -> ov.Model:
    """About ``num_ops`` ops on tensors of one shape."""
    parameters = [opset13.parameter([2, 4], np.float32, name=f"p{i}") for i in range(rng.integers(1, 5))]
    pool = [p.output(0) for p in parameters]
    near = rng.random()

    def some() -> ov.Output:
        most = min(len(pool), 4) if rng.random() < near else len(pool)
        return pool[-1 - int(rng.integers(most))]

    for kind in rng.integers(0, 7, num_ops).tolist():
        pool += [_op(kind, some, rng)]
    results = [opset13.result(port) for port in pool if not port.get_target_inputs()]
    results.append(opset13.result(pool[-1 - int(rng.integers(num_ops))]))
    return ov.Model(results, parameters, "random")


def _op(kind: int, some: Callable[[], ov.Output], rng: np.random.Generator) -> ov.Output:
    value = rng.integers(-9, 9, (2, 4))
    if kind == 0:
        return opset13.sigmoid(some()).output(0)
    if kind == 1:
        return opset13.maximum(some(), opset13.convert(opset13.constant(value.astype(np.int8)), "f32")).output(0)
    if kind == 2:
        return opset13.minimum(some(), opset13.constant(value.astype(np.float32))).output(0)
    if kind == 3:
        halves = opset13.split(some(), opset13.constant(np.int64(1)), 2)
        return opset13.concat([halves.output(1), halves.output(int(rng.integers(2)))], 1).output(0)
    if kind == 4:
        twice = some()
        return opset13.maximum(twice, twice).output(0)
    return opset13.minimum(some(), some()).output(0)


def random_devices(graph: ComputationGraph, num_devices: int, rng: np.random.Generator) -> IntArray:
    """[N] a device for every op, scattered or in runs, that co-location sets share."""
    sets = colocate(graph).sets
    moves = rng.random(sets.num_groups) < rng.choice([0.1, 0.3, 1.0])
    devices = np.cumsum(moves * rng.integers(0, num_devices, sets.num_groups)) % num_devices
    return np.asarray(devices[sets.labels], dtype=np.int64)
