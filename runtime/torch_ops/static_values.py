"""Values that follow from constants and fixed shapes alone, known before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.runtime.torch_ops.base import input_shape, unsupported

Values = dict[tuple[str, int], NDArray[Any]]


def static_value(output: ov.Output) -> NDArray[Any] | None:
    """The value of an output that depends on no model input's contents; None where it does.

    The shape of a tensor counts as known where it is fixed. OpenVINO evaluates what lies between.
    """
    values: Values = {}
    waiting = [output.get_node()]
    while waiting:
        node = waiting[-1]
        sources = [] if node.get_type_name() == "ShapeOf" else [port.get_source_output() for port in node.inputs()]
        missing = [source.get_node() for source in sources if _key(source) not in values]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if _key(node.output(0)) not in values and not _evaluate(node, [values[_key(s)] for s in sources], values):
            return None
    return values[_key(output)]


def static_input(node: ov.Node, port: int, what: str) -> NDArray[Any]:
    """The value of an input port. Raises UnsupportedOpError, naming it ``what``, where it is not known beforehand."""
    value = static_value(node.input(port).get_source_output())
    if value is None:
        raise unsupported(node, f"{what} (input {port}) that change from call to call", "it with constant ones")
    return value


def _key(output: ov.Output) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _evaluate(node: ov.Node, inputs: list[NDArray[Any]], values: Values) -> bool:
    """Put the values of all outputs of a node into ``values``; whether they are known."""
    if node.get_type_name() == "Constant":
        values[_key(node.output(0))] = np.array(node.data)
        return True
    if node.get_type_name() == "ShapeOf":
        shape = np.array(input_shape(node), dtype=node.get_output_element_type(0).to_dtype())
        values[_key(node.output(0))] = shape
        return True
    if not inputs:
        return False
    results = [ov.Tensor(port.get_element_type(), _shape(port)) for port in node.outputs()]
    tensors = [ov.Tensor(np.ascontiguousarray(x).reshape(x.shape)) for x in inputs]
    if not node.evaluate(results, tensors):
        return False
    values.update({_key(port): np.array(result.data) for port, result in zip(node.outputs(), results, strict=True)})
    return True


def _shape(port: ov.Output) -> ov.Shape:
    shape = port.get_partial_shape()
    return shape.to_shape() if shape.is_static else ov.Shape([0] * shape.rank.get_length())
