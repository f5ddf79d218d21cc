"""From a torch network to an OpenVINO model with fixed shapes, stable names and fp16 weights."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import openvino as ov
import torch
from torch import nn

from hsdag.ir.errors import OutputError
from hsdag.ir.reader import quiet_conversion
from hsdag.models.spec import ModelSpec

TORCH_TYPES = {"f32": torch.float32, "i64": torch.int64}
NUMBERED_NAME = re.compile(r"([A-Za-z]+_)?\d+")  # a counter of OpenVINO or torch, no part of the network


def to_openvino(spec: ModelSpec, network: nn.Module) -> ov.Model:
    """The network as an OpenVINO model named after its spec, weights still in fp32.

    Op names are unique and the same in every process, so that a placement fits the model built again.
    """
    example = tuple(torch.ones(x.shape, dtype=TORCH_TYPES[x.element_type]) for x in spec.inputs)
    with quiet_conversion(), torch.no_grad():
        # traced here, since convert_model would trace the network a second time to check the first
        traced = torch.jit.trace(network, example, check_trace=False)  # type: ignore[no-untyped-call]
        model = ov.convert_model(traced, input=[list(model_input.shape) for model_input in spec.inputs])
    model.set_friendly_name(spec.name)
    for parameter, model_input in zip(model.get_parameters(), spec.inputs, strict=True):
        parameter.set_friendly_name(model_input.name)
        parameter.output(0).get_tensor().set_names({model_input.name})
    for result, output_name in zip(model.get_results(), spec.outputs, strict=True):
        result.set_friendly_name(f"{output_name}/result")
        result.input_value(0).get_tensor().set_names({output_name})
    _name_by_consumer(model)
    return model


def compressed(model: ov.Model) -> ov.Model:
    """The model as it is read back after it was saved with fp16 weights, independent of any file."""
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})
    with tempfile.TemporaryDirectory(prefix="hsdag-zoo-") as folder:
        path = Path(folder) / "model.xml"
        ov.save_model(model, path, compress_to_fp16=True)
        return core.read_model(path)


def check_target(path: Path) -> None:
    """Raise OutputError when ``path`` is a folder or lies in none, before work goes into a model."""
    if path.is_dir():
        raise OutputError(f"model {path} cannot be written: expected a file, found a folder; choose another name")
    if not path.parent.is_dir():
        raise OutputError(f"model {path} cannot be written: there is no folder {path.parent}; create it first")


def _name_by_consumer(model: ov.Model) -> None:
    """Rename ops that carry nothing but a counter after their first consumer and its input port."""
    for op in reversed(model.get_ordered_ops()):  # consumers before producers
        targets = op.output(0).get_target_inputs() if op.get_output_size() else set()
        if not targets or not NUMBERED_NAME.fullmatch(op.get_friendly_name()):
            continue
        first = min(targets, key=lambda target: (target.get_node().get_friendly_name(), target.get_index()))
        op.set_friendly_name(f"{first.get_node().get_friendly_name()}/input{first.get_index()}")
    names = [op.get_friendly_name() for op in model.get_ordered_ops()]
    assert len(set(names)) == len(names), f"op names of {model.get_friendly_name()} are not unique"
