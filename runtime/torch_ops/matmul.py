"""MatMul, Einsum and ScaledDotProductAttention.

Legend: B batch axes, L queries, S keys, E width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Builder, Op, Tensor, TorchOp, of_floats


def _matmul(op: Op) -> TorchOp:
    turn_a, turn_b = (
        bool(op.attribute(name)) and len(op.input_shape(port)) > 1  # a vector has nothing to transpose
        for port, name in enumerate(("transpose_a", "transpose_b"))
    )

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        a, b = xs
        return (torch.matmul(a.mT if turn_a else a, b.mT if turn_b else b),)

    return run


def _einsum(op: Op) -> TorchOp:
    equation = str(op.attribute("equation"))
    return lambda xs: (torch.einsum(equation, *xs),)


def _attention(op: Op) -> TorchOp:
    """Queries [B..., L, E], keys [B..., S, E], values [B..., S, Ev]; a mask that broadcasts to [B..., L, S]; a scale.

    A causal op reads no mask, nor does one with a mask of one element (which OpenVINO writes for none).
    """
    num_inputs = op.num_inputs
    if num_inputs > 5:
        raise op.unsupported(f"{num_inputs} inputs", "query, key, value, mask and scale")
    causal = bool(op.attribute("causal"))
    masked = not causal and num_inputs > 3 and (len(op.input_shape(3)) > 0 or prod(op.input_shape(3)) > 1)
    scale = float(op.known_input(4, "a scale").item()) if num_inputs > 4 else None
    batch = op.output_shape()[:-2]

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        query, key, value = (x.expand(*batch, *x.shape[-2:]) for x in xs[:3])
        mask = xs[3] if masked else None
        if mask is not None and mask.dtype is not torch.bool:
            mask = mask.to(query.dtype)
        return (functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale),)

    return run


BUILDERS: dict[str, Builder] = {
    "MatMul": of_floats(_matmul),
    "Einsum": of_floats(_einsum),
    "ScaledDotProductAttention": of_floats(_attention),
}
