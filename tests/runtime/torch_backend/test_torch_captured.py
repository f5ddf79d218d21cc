"""Captured programs beside others, as far as can be seen without a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.torch_backend import CapturedProgram, TorchGraph, TorchNode, build_program, logical_devices
from hsdag.runtime.torch_backend.streams import new_capture_stream, new_stream


class OnTheCpu(CapturedProgram):
    """What surrounds a graph, with a slow fill in its place."""

    def __init__(self) -> None:
        graph = TorchGraph("g", (TorchNode("c", constants=(torch.ones(1),)),), {"y": (0, 0)})
        self.program = build_program(graph, [0], logical_devices(1))
        self._gpu = torch.device("cpu")
        self._outputs = {"y": torch.zeros(1)}
        self._is_closed = False
        self._given = 0.0

    def _overwrite(self, inputs: Mapping[str, Any]) -> None:
        self._given = float(inputs["x"])

    def replay(self) -> None:
        time.sleep(0.005)
        self._outputs["y"].fill_(self._given)


def test_every_thread_gets_the_results_of_its_own_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    captured, found = OnTheCpu(), dict[int, list[float]]()

    def ask(value: int) -> None:
        found[value] = [float(captured.infer({"x": torch.tensor(value)})["y"]) for _ in range(5)]

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {value: [value] * 5 for value in range(1, 5)}


@pytest.mark.parametrize("call", [CapturedProgram.infer, CapturedProgram.replay])
def test_a_closed_captured_program_says_so(call: Any) -> None:
    captured = OnTheCpu()
    captured._is_closed = True
    captured.close()
    with pytest.raises(ExecutionError, match="the captured program of 'g' is closed; create another"):
        call(captured)


def test_captures_take_their_streams_from_another_pool_than_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps one pool of streams for each priority."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda _, priority=0: priority)
    gpu = torch.device("cuda:0")
    priorities: list[object] = [new_stream(gpu), new_capture_stream(gpu)]
    assert priorities == [0, -1]
