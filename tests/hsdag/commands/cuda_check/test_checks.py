"""The checks of the CUDA engine on logical devices of the CPU, in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hsdag.commands.cuda_check import Ending, faults, parity, transfers
from hsdag.commands.cuda_check.checks import CHECKS, Check, DeviceSetup, Untestable, function_of
from hsdag.commands.cuda_check.gallery import gallery
from hsdag.commands.cuda_check.worker import Checker
from hsdag.ir.device import DeviceSpec
from hsdag.models import list_workloads
from hsdag.runtime.torch_backend import logical_devices
from hsdag.runtime.torch_backend.transfer import Transfer, transfer_between
from hsdag.runtime.torch_ops import supported_types

PAIR = logical_devices(2)
CHECKER = Checker(DeviceSetup((DeviceSpec("A", "cpu", {"threads": "1"}), DeviceSpec("B", "cpu", {"threads": "1"}))))


def test_the_gallery_has_an_op_of_every_type_that_the_library_runs() -> None:
    assert set(supported_types()) <= {node.get_type_name() for node in gallery().get_ops()}


def test_every_workload_that_computes_something_is_checked() -> None:
    computing = {spec.name for spec in list_workloads() if spec.name in parity.SMALL}
    others = [spec for spec in list_workloads() if spec.name not in parity.SMALL]
    assert computing == set(parity.SMALL) == {name.split()[1][:-1] for name, _, _ in CHECKS if "workload" in name}
    assert not any(any(spec.build(2).expressions) for spec in others if spec.name != "gpt3")


def test_every_check_has_its_function() -> None:
    assert all(callable(function_of(name)[0]) for name, _, _ in CHECKS)


@pytest.mark.parametrize("name", ["ops of tiny_resnet", "workload ffnn, split", "an op that fails", "memory limit"])
def test_what_works_on_logical_devices_passes(name: str) -> None:
    item = CHECKER.handle(Check(name))
    assert (item.name, item.ending) == (name, Ending.PASS), item.detail


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("captured against dynamic", "CUDA graphs need a GPU"),
        ("peer access", "peer access needs two GPUs, and there is none among the devices"),
        ("shares of a GPU", "multiprocessors are those of a GPU"),
    ],
)
def test_what_needs_a_gpu_is_not_testable_on_logical_devices(name: str, why: str) -> None:
    item = CHECKER.handle(Check(name))
    assert (item.ending, item.detail) == (Ending.UNTESTED, why)


def test_an_op_that_computes_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    einsum = torch.einsum
    monkeypatch.setattr(torch, "einsum", lambda *given: 2 * einsum(*given))  # as a kernel that is wrong on this machine
    item = CHECKER.handle(Check("ops of the library"))
    assert item.ending is Ending.FAIL
    assert "on cpu 1 of" in item.detail
    assert "Einsum" in item.detail


def test_a_copy_that_changes_what_it_copies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*given: Any) -> Transfer:
        sound = transfer_between(*given)
        return replace(sound, run=lambda xs: (sound.run(xs)[0].roll(1),))

    monkeypatch.setattr("hsdag.runtime.torch_backend.program.transfer_between", damaged)
    with pytest.raises(AssertionError, match="a copy from d0 to d1 is damaged"):
        transfers.copies(PAIR)


def test_an_error_that_does_not_name_its_op_is_no_pass() -> None:
    with pytest.raises(AssertionError, match="does not name something else"):
        faults._once(PAIR[0], lambda xs: (xs[0][7, 0, 0],), "something else")


def test_one_device_has_no_other_to_overlap_with() -> None:
    with pytest.raises(Untestable, match="overlap needs two devices"):
        transfers.overlap(PAIR[:1])
