"""Placed graphs on torch devices: ops as functions of tensors, programs of tasks, and the executor that runs them."""

from hsdag.runtime.torch.buffers import DeviceMemoryError
from hsdag.runtime.torch.devices import LogicalDevice, logical_devices
from hsdag.runtime.torch.executor import TorchExecutor, TorchRequest
from hsdag.runtime.torch.graph import Feed, TorchGraph, TorchNode, openvino_graph
from hsdag.runtime.torch.op import TensorFunction, UnsupportedOpError, allow_tf32
from hsdag.runtime.torch.ops import build_op
from hsdag.runtime.torch.program import Program, build_program

__all__ = [
    "DeviceMemoryError",
    "Feed",
    "LogicalDevice",
    "Program",
    "TensorFunction",
    "TorchExecutor",
    "TorchGraph",
    "TorchNode",
    "TorchRequest",
    "UnsupportedOpError",
    "allow_tf32",
    "build_op",
    "build_program",
    "logical_devices",
    "openvino_graph",
]
