"""MatMul and Einsum."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import Builder, Tensor, TorchOp, attribute, input_shape, require_float


def _matmul(node: ov.Node) -> TorchOp:
    require_float(node)
    turn_a, turn_b = (
        bool(attribute(node, name)) and len(input_shape(node, port)) > 1  # a vector has nothing to transpose
        for port, name in enumerate(("transpose_a", "transpose_b"))
    )

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        a, b = xs
        return (torch.matmul(a.mT if turn_a else a, b.mT if turn_b else b),)

    return run


def _einsum(node: ov.Node) -> TorchOp:
    require_float(node)
    equation = str(attribute(node, "equation"))
    return lambda xs: (torch.einsum(equation, *xs),)


BUILDERS: dict[str, Builder] = {"MatMul": _matmul, "Einsum": _einsum}
