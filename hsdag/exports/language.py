"""Support language models in OpenVINO GenAI's form: a folder with tokenizer and configuration beside the network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TypeGuard

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.base.errors import OutputError
from hsdag.ir.graph.reader import NETWORKS

CONFIGURATION = "config.json"

LLM, VLM, WHISPER = "LLMPipeline", "VLMPipeline", "WhisperPipeline"
PIPELINES = dict(zip(NETWORKS, (LLM, VLM, WHISPER), strict=True))
"""OpenVINO GenAI class that runs a folder, by the file name of the network that is placed."""

NO_EXTENSIONS = f"{WHISPER} takes no extension library (2026.4.1), so that HETERO chooses the devices itself"

PASSED = frozenset({"Add", "Convert", "Divide", "Multiply", "Tanh", "Transpose"})
"""Op types that may lie between the last MatMul and the logits."""


def is_in_folder(path: Path | None) -> TypeGuard[Path]:
    """Return whether the path is that of a network in a folder that OpenVINO GenAI can run."""
    return path is not None and path.name in NETWORKS and (path.parent / CONFIGURATION).is_file()


def pipeline_of(model: ov.Model, name: str) -> str:
    """Return the OpenVINO GenAI class that runs the network in file ``name``, or "" if it does not generate."""
    gives_logits = any("logits" in port.get_names() for port in model.outputs)
    return PIPELINES.get(name, "") if gives_logits and model.get_sinks() else ""


def for_genai(model: ov.Model, kept: str) -> None:
    """Rewrite a placed network to output the logits of the last token only, so that GenAI adds no ops for that.

    GenAI would add ops, which have no device, where the Result reads a MatMul or one of the ops that may follow it.
    Here the Result reads a Convert, which plugins remove.

    Args:
        kept: Key of an op's rt_info that holds its device; the added ops get the MatMul's.
    """
    matmul = _last_matmul(model)
    if matmul is None:
        return
    hidden, home = matmul.input_value(0), matmul.get_rt_info()[kept].astype(str)
    axis = hidden.get_partial_shape().rank.get_length() - 2
    numbers = [opset13.constant(np.asarray([value])) for value in (-1, np.iinfo(np.int64).max, 1, axis)]
    last = opset13.slice(hidden, *numbers, name="hsdag/last-token")
    matmul.input(0).replace_source_output(last.output(0))
    result = _logits(model)
    source = result.input_value(0)
    same = opset13.convert(source, source.get_element_type(), name="hsdag/logits")
    result.input(0).replace_source_output(same.output(0))
    same.output(0).get_tensor().set_names(source.get_tensor().get_names())
    source.get_tensor().set_names(set())
    for node in (*numbers, last, same):
        node.get_rt_info()[kept] = home
    model.validate_nodes_and_infer_types()


def copy_folder(source: Path, folder: Path, written: set[str]) -> None:
    """Copy the files beside the network into ``folder``, except those in ``written``. Raises OutputError on failure."""
    try:
        for path in sorted(source.iterdir()):
            if path.is_file() and path.name not in written:
                shutil.copyfile(path, folder / path.name)
    except OSError as error:
        raise OutputError(f"{error.filename} cannot be copied: {error.strerror or error}") from error


def _logits(model: ov.Model) -> ov.Node:
    """Return the Result node of the logits."""
    return next(port.get_node() for port in model.outputs if "logits" in port.get_names())


def _last_matmul(model: ov.Model) -> ov.Node | None:
    """Return the MatMul that computes the logits, or None if another op does."""
    node = _logits(model).input_value(0).get_node()
    while node.get_type_name() in PASSED:
        values = [value.get_node() for value in node.input_values()]
        node = next((source for source in values if source.get_type_name() != "Constant"), values[0])
    return node if node.get_type_name() == "MatMul" else None
