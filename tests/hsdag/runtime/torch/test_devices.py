"""Torch devices as text: what is taken, and what a mistake is answered with."""

from __future__ import annotations

import pytest
import torch

from hsdag.base.errors import DeviceError
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.torch.devices import LogicalDevice, logical_device, parse_torch_devices, resolve_torch_devices


def test_devices_of_the_cpu_have_names_and_threads_or_those_of_their_hardware() -> None:
    a, b = map(logical_device, parse_torch_devices("A=cpu[threads=1], B=cpu"))
    assert (a.name, a.torch_device, a.threads, b.threads) == ("A", "cpu", 1, usable_cpus())
    assert parse_torch_devices("cpu") == (DeviceSpec("cpu", "cpu"),)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_cuda_the_error_says_what_to_write_instead() -> None:
    with pytest.raises(DeviceError, match=r"no CUDA device here; name logical devices .*'A=cpu\[threads=1\],B=cpu"):
        parse_torch_devices(None)
    with pytest.raises(DeviceError, match="device 'cuda:0': torch finds no cuda:0 here; CUDA devices: none"):
        parse_torch_devices("cuda:0,cuda:1")
    with pytest.raises(DeviceError, match="torch finds no gpu here; CUDA devices: none"):
        LogicalDevice("d", "gpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CPU", "device 'CPU' is not one that torch runs: write cuda:0"),
        ("A=cpu[threads=two]", "device 'A' over cpu takes threads=N and precision=NAME, not threads=two"),
        ("A=cpu[threads=0]", "device 'A' needs at least one thread, not 0"),
        ("A=cpu[depth=2]", "device 'A' over cpu takes threads=N and precision=NAME, not depth=2"),
        ("A=cpu[precision=tf32]", "device 'A' computes in f32, bf16, f16, not in 'tf32'"),
        ("A=cpu,A=cpu", "a device occurs twice"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message.replace("[", r"\[")):
        parse_torch_devices(text)


def test_parts_compete_with_the_whole_device() -> None:
    assert resolve_torch_devices("A=cpu[threads=1],B=cpu[threads=1]").rivals == (DeviceSpec("cpu", "cpu"),)
    assert resolve_torch_devices("A=cpu,cpu").rivals == ()
