"""Constant, Parameter, Result, and ops whose value is known before anything runs."""

from __future__ import annotations

import numpy as np
import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import Builder, DeviceCopies, TorchOp, unsupported
from hsdag.runtime.torch_ops.static_values import static_value
from hsdag.runtime.torch_ops.weights import constant_tensor


def _constant(node: ov.Node) -> TorchOp:
    tensor = constant_tensor(node)
    return lambda _: (tensor,)


def _pass_on(_: ov.Node) -> TorchOp:
    return lambda xs: (xs[0],)


def _known(node: ov.Node) -> TorchOp:
    """The value from build time, on the device of the first input."""
    value = static_value(node.output(0))
    if value is None:
        raise unsupported(node, "a value that changes from call to call", "it where the value is constant")
    copies = DeviceCopies(torch.from_numpy(np.array(value)))
    return lambda xs: (copies.on(xs[0].device),)


BUILDERS: dict[str, Builder] = {
    "Constant": _constant,
    "Parameter": _pass_on,  # takes the tensor that was fed
    "Result": _pass_on,
    "ShapeOf": _known,
    "Range": _known,
    "NonZero": _known,
}
