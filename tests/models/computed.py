"""What workloads compute, by NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hsdag.models import Workload
from hsdag.models.workload_numpy import Array, evaluate, input_part, values_of


def input_shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Shape of every input of a workload, from the parts that its ops hold."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in workload.expressions:
        if text.startswith("input:"):
            name, ranges = input_part(text)
            ends = tuple(r.stop for r in ranges)
            shapes[name] = tuple(map(max, ends, shapes.get(name, ends)))
    return shapes


def random_inputs(workload: Workload, seed: int = 0) -> dict[str, Array]:
    """Normal numbers for every input, small enough for products to stay near one."""
    rng = np.random.default_rng(seed)
    return {name: 0.3 * rng.standard_normal(shape) for name, shape in input_shapes(workload).items()}


def execute(workload: Workload, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Results by name; every op must have the shape that the graph declares."""
    graph = workload.graph
    sources = [graph.predecessors.of(v).tolist() for v in range(graph.num_ops)]
    values = values_of(workload.expressions, sources, graph.topological_order.tolist(), inputs)
    assert all(values[v].shape == graph.shape_of(v) for v in range(graph.num_ops)), graph.name
    return {name: evaluate(x, values) for name, x in workload.outputs.items()}
