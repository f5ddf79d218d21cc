"""Placed graphs on torch devices: logical devices, programs, the dynamic loop, and captured CUDA graphs."""

from hsdag.runtime.torch_backend.captured import CapturedProgram
from hsdag.runtime.torch_backend.device import LogicalDevice, logical_devices
from hsdag.runtime.torch_backend.executor import Inference, TorchExecutor
from hsdag.runtime.torch_backend.graph import Feed, TensorFunction, TorchGraph, TorchNode
from hsdag.runtime.torch_backend.memory import DeviceMemoryError, MemoryLedger
from hsdag.runtime.torch_backend.program import Program, build_program
from hsdag.runtime.torch_backend.state import Inputs

__all__ = [
    "CapturedProgram",
    "DeviceMemoryError",
    "Feed",
    "Inference",
    "Inputs",
    "LogicalDevice",
    "MemoryLedger",
    "Program",
    "TensorFunction",
    "TorchExecutor",
    "TorchGraph",
    "TorchNode",
    "build_program",
    "logical_devices",
]
