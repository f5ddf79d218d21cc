"""Softmax and LogSoftmax."""

from __future__ import annotations

import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import Builder, TorchOp, attribute, require_float


def _softmax(node: ov.Node) -> TorchOp:
    require_float(node)
    axis = int(attribute(node, "axis"))
    return lambda xs: (torch.softmax(xs[0], axis),)


def _log_softmax(node: ov.Node) -> TorchOp:
    require_float(node)
    axis = int(attribute(node, "axis"))
    return lambda xs: (torch.log_softmax(xs[0], axis),)


BUILDERS: dict[str, Builder] = {"Softmax": _softmax, "LogSoftmax": _log_softmax}
