"""Excerpts: a model up to one of its ops, and one op by itself, as models that can be compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino as ov
from openvino import opset13

from hsdag.ir.errors import ModelError


def up_to(model: ov.Model, names: tuple[str, ...]) -> ov.Model:
    """A clone of a model whose results are all outputs of the ops ``names`` alone; inputs and state are the model's.

    Ops bear unique names. Raises ModelError for a name that the model does not have.
    """
    excerpt = model.clone()
    found = {node.get_friendly_name(): node for node in excerpt.get_ordered_ops()}
    ports = [port for name in names for port in _op(found, name).outputs()]
    for result in excerpt.get_results():
        excerpt.remove_result(result)
    excerpt.add_results([opset13.result(port) for port in ports])
    return excerpt


def inputs_of(model: ov.Model, name: str) -> tuple[str, ...]:
    """The ops that op ``name`` reads and that depend on the model's inputs or state, each once."""
    nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
    found: dict[str, None] = {}
    for port in _op(nodes, name).inputs():
        source = port.get_source_output().get_node()
        if _depends_on_data(source):
            found[source.get_friendly_name()] = None
    return tuple(found)


def alone(model: ov.Model, name: str, values: Mapping[tuple[str, int], ov.Tensor]) -> tuple[ov.Model, list[ov.Tensor]]:
    """Op ``name`` as a model, and the tensors of its inputs.

    ``values`` are those of ops that depend on data, by name and output port. Real numbers become inputs, others
    constants, for plugins may have to know a shape or an axis.
    """
    clone = model.clone()
    node = _op({each.get_friendly_name(): each for each in clone.get_ordered_ops()}, name)
    parameters: dict[tuple[str, int], Any] = {}
    given: list[ov.Tensor] = []
    for port in node.inputs():
        source = port.get_source_output()
        key = source.get_node().get_friendly_name(), source.get_index()
        if key not in values:
            continue
        if not source.get_element_type().is_real():
            port.replace_source_output(opset13.constant(values[key]).output(0))
            continue
        if key not in parameters:
            parameters[key] = opset13.parameter(values[key].shape, source.get_element_type())
            given.append(values[key])
        port.replace_source_output(parameters[key].output(0))
    return ov.Model([opset13.result(port) for port in node.outputs()], list(parameters.values()), name), given


def _depends_on_data(node: Any) -> bool:
    """Whether an op is computed from an input or a variable."""
    seen, to_do = set[str](), [node]
    while to_do:
        current = to_do.pop()
        if current.get_type_name() in ("Parameter", "ReadValue"):
            return True
        if current.get_name() not in seen:
            seen.add(current.get_name())
            to_do += [value.get_node() for value in current.input_values()]
    return False


def _op(nodes: Mapping[str, Any], name: str) -> Any:
    if name not in nodes:
        raise ModelError(f"the model has no op {name!r}")
    return nodes[name]
