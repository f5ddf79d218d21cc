"""The check of the CUDA engine on logical devices of the CPU: what is wrong, hangs or dies fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hsdag.diagnosis.cuda_check import Check, Checker, DeviceSetup, check_copy, check_cuda, check_fault, check_model
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import DeviceError, ExecutionError
from hsdag.runtime.torch import logical_devices, ops
from hsdag.runtime.torch.program import copy_between

PAIR = logical_devices(2)
ODD = """
import os, time
from hsdag.ir.processes import main

class Odd:
    def __init__(self, setup, channel): pass
    def handle(self, request):
        if request.name == "model": os._exit(3)
        if request.name == "fault": time.sleep(60)
        return {}["no such key"]

main(Odd)
"""


def test_a_check_that_crashes_hangs_or_is_a_defect_fails_alone() -> None:
    steps = list[str]()
    found = check_cuda("A=cpu,B=cpu", limit_s=1.0, command=(sys.executable, "-c", ODD), on_step=steps.append)
    assert steps == ["checking model", "checking fault", "checking copy"]
    assert not any(item.passed for item in found.items)
    words = ("exited with code 3", "gave no answer within 1 s and was killed", "KeyError")
    assert all(word in item.detail for word, item in zip(words, found.items, strict=True))
    assert found.sentence.startswith("0 of 3 checks on A, B passed.")


def test_what_works_passes_whatever_the_devices_are() -> None:
    checker = Checker(DeviceSetup((DeviceSpec("A", "cpu", {"threads": "1"}),)))
    assert "largest relative difference" in checker.handle(Check("model"))
    assert checker.handle(Check("copy")) == "A is the only device"
    assert "arrive as sent" in check_copy(PAIR)
    check_fault(PAIR)


def test_a_device_that_is_not_here_is_an_error_before_any_check() -> None:
    with pytest.raises(DeviceError, match="torch finds no cuda:99 here"):
        check_cuda("cuda:99")


def test_an_op_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        ops.BUILDERS, "Relu", lambda _: lambda xs: (2 * torch.relu(xs[0]),)
    )  # as a kernel that is wrong here
    with pytest.raises(ExecutionError, match="outputs of tiny_inception, placed at random, differ from OpenVINO's"):
        check_model(PAIR)


def test_a_copy_that_changes_what_it_copies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*pair: Any) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
        return lambda xs: (copy_between(*pair)(xs)[0].roll(1),)

    monkeypatch.setattr("hsdag.runtime.torch.program.copy_between", damaged)
    with pytest.raises(ExecutionError, match="a copy from d0 to d1 is damaged"):
        check_copy(PAIR)
