"""OpenVINO ops on torch devices: one builder for each op type, which turns an op into a function of tensors."""

from hsdag.runtime.torch_ops.base import TORCH_TYPES, TorchOp, UnsupportedOpError, allow_tf32, static_value
from hsdag.runtime.torch_ops.registry import build_op, supported_types
from hsdag.runtime.torch_ops.source import constant_tensor

__all__ = [
    "TORCH_TYPES",
    "TorchOp",
    "UnsupportedOpError",
    "allow_tf32",
    "build_op",
    "constant_tensor",
    "static_value",
    "supported_types",
]
