"""The op library beside OpenVINO on the CPU in f32: op by op on OpenVINO's own inputs, and a whole model at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from openvino import opset13

from hsdag.runtime.torch_ops.base import Tensor
from hsdag.runtime.torch_ops.registry import build_op

CPU = torch.device("cpu")
Arrays = Sequence[NDArray[Any]]
Values = dict[tuple[str, int], Tensor]


@dataclass(frozen=True)
class OpDifference:
    """How far an op's worst output lies from OpenVINO's: see ``relative_difference``."""

    name: str
    op_type: str
    relative: float


def op_differences(model: ov.Model, inputs: Arrays, device: torch.device = CPU) -> tuple[OpDifference, ...]:
    """Every op but constants and results, each fed what OpenVINO computed before it, so that errors do not add up.

    ``inputs`` are in the order of the model's parameters. Outputs that nobody reads are left out.
    Raises UnsupportedOpError for ops that the library does not run.
    """
    model = model.clone()
    wanted = _openvino_values(model, inputs)
    found = []
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("Constant", "Parameter", "Result"):
            continue
        results = build_op(node)([x.to(device) for x in _inputs(node, wanted)])
        pairs = [(x, wanted[node.get_name(), port]) for port, x in enumerate(results) if _is_read(node.output(port))]
        worst = max((relative_difference(got.cpu(), x) for got, x in pairs), default=0.0)
        found.append(OpDifference(node.get_friendly_name(), node.get_type_name(), worst))
    return tuple(found)


def run_model(model: ov.Model, inputs: Arrays, device: torch.device = CPU) -> tuple[Tensor, ...]:
    """The model's outputs, on the CPU, computed by torch alone on ``device``, one op after another."""
    fed = {node.get_name(): torch.from_numpy(x).to(device) for node, x in _fed(model, inputs).items()}
    values: Values = {}
    for node in model.get_ordered_ops():
        name = node.get_name()
        xs = [fed[name]] if name in fed else _inputs(node, values)
        results = build_op(node)(xs)
        values.update({(name, port): x.to(device) for port, x in enumerate(results)})
    return tuple(values[node.get_name(), 0].cpu() for node in model.get_results())


def run_openvino(model: ov.Model, inputs: Arrays) -> tuple[Tensor, ...]:
    """The model's outputs from OpenVINO's CPU device in f32."""
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(model, "CPU", exact).create_infer_request()
    request.infer(list(inputs))
    # a copy: the request owns what it hands out
    return tuple(torch.from_numpy(np.array(request.get_output_tensor(k).data)) for k in range(len(model.outputs)))


def relative_difference(got: Tensor, wanted: Tensor) -> float:
    """The largest difference over the largest finite magnitude of ``wanted``, or over 1 where that is 0.

    Infinite where shapes, element types, or the places of infinite and undefined elements differ.
    """
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    got, wanted = got.to(torch.float64), wanted.to(torch.float64)
    finite = torch.isfinite(wanted)
    if not torch.equal(got[~finite].nan_to_num(7.0), wanted[~finite].nan_to_num(7.0)):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = wanted[finite].abs().max().item() or 1.0
    difference = (got[finite] - wanted[finite]).abs().max().item() / scale
    return difference if np.isfinite(difference) else float("inf")


def _openvino_values(model: ov.Model, inputs: Arrays) -> Values:
    """What every output that is read holds, by op name and port; the model gets a Result at each of them."""
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() != "Result"]
    constants = [node for node in nodes if node.get_type_name() == "Constant"]
    read = [port for node in nodes if node.get_type_name() != "Constant" for port in node.outputs() if _is_read(port)]
    probe = ov.Model([opset13.result(port) for port in read], model.get_parameters(), "probe")
    results = run_openvino(probe, inputs)
    values = {(port.get_node().get_name(), port.get_index()): x for port, x in zip(read, results, strict=True)}
    return values | {(node.get_name(), 0): build_op(node)(())[0] for node in constants}


def _inputs(node: ov.Node, values: Values) -> list[Tensor]:
    sources = [port.get_source_output() for port in node.inputs()]
    return [values[source.get_node().get_name(), source.get_index()] for source in sources]


def _fed(model: ov.Model, inputs: Arrays) -> Mapping[ov.Node, NDArray[Any]]:
    return dict(zip(model.get_parameters(), inputs, strict=True))


def _is_read(port: ov.Output) -> bool:
    return len(port.get_target_inputs()) > 0
