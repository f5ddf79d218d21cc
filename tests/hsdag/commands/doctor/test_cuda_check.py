"""The check of the CUDA engine on logical devices of the CPU: what is wrong, hangs or dies fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hsdag.base.errors import ExecutionError
from hsdag.commands.doctor.cuda_check import CHECKS, check_copy, check_cuda, check_fault, setup_of
from hsdag.runtime.measuring.messages import WorkerSetup
from hsdag.runtime.torch import ops
from hsdag.runtime.torch.devices import parse_torch_devices
from hsdag.runtime.torch.program import copy_between
from hsdag.runtime.torch.worker import TorchWorker

PAIR = parse_torch_devices("A=cpu[threads=1],B=cpu[threads=1]")
ODD = """
import os, time
from hsdag.base.processes import main

class Odd:
    def handle(self, request):
        if request.name == "choices": os._exit(3)
        if request.name == "open": time.sleep(60)
        return {}["no such key"]

main(lambda setup, channel: Odd())
"""


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> WorkerSetup:
    return setup_of(PAIR, tmp_path_factory.mktemp("setup"))


@pytest.fixture
def worker(setup: WorkerSetup) -> TorchWorker:
    return TorchWorker(setup)


def test_a_check_that_crashes_hangs_or_is_a_defect_fails_alone() -> None:
    steps = list[str]()
    found = check_cuda("A=cpu,B=cpu", limit_s=1.0, command=(sys.executable, "-c", ODD), on_step=steps.append)
    assert steps == ["checking model", "checking fault", "checking copy"]
    assert not any(item.passed for item in found.items)
    words = ("exited with code 3", "gave no answer within 1 s and was killed", "KeyError")
    assert all(word in item.detail for word, item in zip(words, found.items, strict=True))
    assert found.sentence.startswith("0 of 3 checks on A, B passed.")


def test_what_works_passes_whatever_the_devices_are(worker: TorchWorker) -> None:
    said = [check(worker.handle, PAIR) for check in CHECKS.values()]
    words = ("largest relative difference", "is given up, and what runs next is right", "arrive as sent")
    assert all(word in text for word, text in zip(words, said, strict=True))
    assert check_copy(worker.handle, PAIR[:1]) == "A is the only device"


def test_an_op_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch, setup: WorkerSetup) -> None:
    monkeypatch.setitem(ops.BUILDERS, "Relu", lambda _: lambda xs: (2 * torch.relu(xs[0]),))
    worker = TorchWorker(setup)
    with pytest.raises(ExecutionError, match="outputs of tiny_inception, placed at random, differ"):
        check_fault(worker.handle, PAIR)


def test_an_inference_that_is_not_given_up_is_found(worker: TorchWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.commands.doctor.cuda_check.LATE_S", 60.0)
    with pytest.raises(ExecutionError, match="that an inference on A takes too long is reported as: nothing"):
        check_fault(worker.handle, PAIR)


def test_a_copy_that_changes_what_it_copies_is_found(worker: TorchWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*pair: Any) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
        return lambda xs: (copy_between(*pair)(xs)[0].roll(1),)

    monkeypatch.setattr("hsdag.runtime.torch.program.copy_between", damaged)
    with pytest.raises(ExecutionError, match="a copy from A to B is damaged"):
        check_copy(worker.handle, PAIR)
