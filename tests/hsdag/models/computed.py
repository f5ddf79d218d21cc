"""What workloads compute, in double precision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.models import Expression, Workload
from hsdag.models.expression import input_part
from hsdag.runtime.torch.workload_graph import compute, double_values

Array = NDArray[np.float64]


def random_inputs(workload: Workload, seed: int = 0) -> dict[str, Array]:
    """Normal numbers for every input, small enough for products to stay near one."""
    rng, shapes = np.random.default_rng(seed), dict[str, tuple[int, ...]]()
    for name, ranges in filter(None, map(input_part, workload.expressions)):
        ends = tuple(last for _, last in ranges)
        shapes[name] = tuple(map(max, ends, shapes.get(name, ends)))
    return {name: 0.3 * rng.standard_normal(shape) for name, shape in shapes.items()}


def execute(workload: Workload, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Results by name; every op must have the shape that the graph declares."""
    graph = workload.graph
    sources = [graph.predecessors.of(v).tolist() for v in range(graph.num_ops)]
    given = {name: torch.as_tensor(x) for name, x in inputs.items()}
    values = double_values(workload.expressions, sources, graph.topological_order.tolist(), given)
    assert all(tuple(values[v].shape) == graph.shape_of(v) for v in range(graph.num_ops)), graph.name
    return {name: compute(x, wide=True)(values).numpy() for name, x in workload.outputs.items()}


def evaluate(formula: Expression, values: list[Array]) -> Array:
    """A formula over matrices, by NumPy."""
    operands = [values[x] if isinstance(x, int) else evaluate(x, values) for x in formula.operands]
    if formula.name == "einsum":
        return np.asarray(np.einsum(formula.argument, *operands))
    if formula.name in ("relu", "silu"):
        (x,) = operands
        return np.maximum(x, 0) if formula.name == "relu" else x / (1 + np.exp(-x))
    function = {"add": np.add, "mul": np.multiply, "maximum": np.maximum}[formula.name]
    return np.asarray(function(*operands))
