"""The checks by name, and the request that has one made in the measuring process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from hsdag.commands.cuda_check.report import Item
from hsdag.ir.device import DeviceSpec
from hsdag.ir.processes import Request

ZOO = ("tiny_resnet", "tiny_inception", "tiny_bert", "llama-decoder")
"""Models of the zoo that are small enough to be checked op by op in seconds."""

WORKLOADS = ("chainmm", "ffnn", "llama-block", "llama-layer", "chain", "transformer")
"""Workloads that compute something; the others are costs alone."""

CHECKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("devices", "machine.devices", ()),
    ("ops of the library", "parity.ops", ("gallery",)),
    *((f"ops of {name}", "parity.ops", (name,)) for name in ZOO),
    *((f"model {name}, split", "parity.model", (name,)) for name in ZOO),
    *((f"workload {name}, split", "parity.workload", (name,)) for name in WORKLOADS),
    ("work-conserving against barrier", "modes.barrier", ()),
    ("captured against dynamic", "modes.captured", ()),
    ("launch cost", "modes.launch_cost", ()),
    ("an op that fails", "faults.failing_op", ()),
    ("an op that hangs", "faults.hanging_op", ()),
    ("memory limit", "faults.memory_limit", ()),
    ("memory is given back", "faults.memory_returns", ()),
    ("memory of the GPU is exhausted", "faults.out_of_memory", ()),
    ("peer access", "transfers.peer_access", ()),
    ("copies between devices", "transfers.copies", ()),
    ("overlap of two devices", "transfers.overlap", ()),
    ("shares of a GPU", "machine.shares", ()),
    ("GPU beside the CPU", "machine.gpu_and_cpu", ()),
)
"""Name, function as ``file.name`` in this folder, and its arguments after the devices."""


@dataclass(frozen=True)
class DeviceSetup(Request[None]):
    """The first request to the process: the devices to check."""

    devices: tuple[DeviceSpec, ...]


@dataclass(frozen=True)
class Check(Request[Item]):
    """Make the check of this name."""

    name: str


def function_of(name: str) -> tuple[Callable[..., str], Sequence[str]]:
    """What makes a check, and its arguments after the devices; it returns what it found.

    It raises Untestable where it cannot be made here, ExecutionError or AssertionError where it fails.
    """
    path, arguments = next((path, arguments) for known, path, arguments in CHECKS if known == name)
    file, _, function = path.partition(".")
    return getattr(import_module(f"hsdag.commands.cuda_check.{file}"), function), arguments


class Untestable(Exception):  # noqa: N818 - an ending we expect, not an error
    """A check that cannot be made on these devices, and why."""
