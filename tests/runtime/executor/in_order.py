"""Running the submodels of a cut by hand, one after another, with OpenVINO's own calls alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov

from hsdag.runtime.executor.cut import Cut, Tensor
from tests.runtime.executor.placing import Arrays


def run_in_order(cut: Cut, compiled: Sequence[Any], model: ov.Model, inputs: Arrays) -> Arrays:
    """The outputs of ``model``, whose subgraphs were compiled in the order of the cut; tensors are copied."""
    given = {port.get_node().get_friendly_name(): array for port, array in zip(model.inputs, inputs, strict=True)}
    made: dict[Tensor, Any] = {}
    for part, each in zip(cut.subgraphs, compiled, strict=True):
        read = {f"{cut.graph.op_names[t.op]}:{t.port}": t for t in part.inputs}
        request = each.create_infer_request()
        for k, port in enumerate(each.inputs):
            tensor = read[port.get_node().get_friendly_name()]
            array = given[cut.graph.op_names[tensor.op]] if tensor.source < 0 else made[tensor]
            request.set_input_tensor(k, ov.Tensor(np.array(array, order="C")))
        request.start_async()
        request.wait()
        for k, tensor in enumerate(part.outputs):
            made[tensor] = np.array(request.get_output_tensor(k).data)
    of_result = {cut.graph.op_names[v]: made[tensor] for v, tensor in cut.results}
    return [of_result[port.get_node().get_friendly_name()] for port in model.outputs]
