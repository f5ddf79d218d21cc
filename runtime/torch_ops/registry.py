"""The torch op library by op type: building one op of an OpenVINO model."""

from __future__ import annotations

import openvino as ov

from hsdag.runtime.torch_ops import elementwise, gather, interpolate, matmul, reduction, shape, source, windows
from hsdag.runtime.torch_ops.base import Builder, Op, TorchOp, UnsupportedOpError

FAMILIES = (elementwise, gather, interpolate, matmul, reduction, shape, source, windows)
_BUILDERS: dict[str, Builder] = {op_type: build for family in FAMILIES for op_type, build in family.BUILDERS.items()}


def supported_types() -> tuple[str, ...]:
    """Every op type that the library runs, in alphabetical order."""
    return tuple(sorted(_BUILDERS))


def build_op(node: ov.Node) -> TorchOp:
    """What runs the op on torch tensors (see TorchOp for the contract).

    Raises UnsupportedOpError, which names the op, for other types, attributes, element
    types, dynamic shapes, and limits that are not constants.
    """
    op = Op(node)
    if op.type not in _BUILDERS:
        raise UnsupportedOpError(
            f"the torch op library does not run {op.label}; it runs {len(_BUILDERS)} other types, which "
            "hsdag.runtime.torch_ops.supported_types() lists; place the model on OpenVINO's devices"
        )
    return _BUILDERS[op.type](op)
