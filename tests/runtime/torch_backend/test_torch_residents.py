"""What lies on torch devices before an inference stays what it is, whatever is done with results."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor import Inbox
from hsdag.runtime.torch_backend import (
    Feed,
    TensorFunction,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    backend,
    build_program,
    logical_devices,
)
from hsdag.runtime.torch_backend import (
    lane as lane_module,
)
from hsdag.runtime.torch_backend.state import RunState

Tensor = torch.Tensor


def node(name: str, read: int, run: TensorFunction) -> TorchNode:
    return TorchNode(name, "Op", ((read, 0),), run)


def views() -> TorchGraph:
    """The input, a constant, and a view of each, all of them results."""
    nodes = (
        TorchNode("x", feed=Feed("x", torch.float32, (4,))),
        TorchNode("c", constants=(torch.ones(4, requires_grad=True),)),
        node("v", 0, lambda xs: (xs[0].reshape(2, 2),)),
        node("w", 1, lambda xs: (xs[0][1:],)),
    )
    return TorchGraph("views", nodes, {"x": (0, 0), "c": (1, 0), "v": (2, 0), "w": (3, 0)})


def waiting(released: threading.Event) -> TorchGraph:
    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        released.wait(20)
        return (xs[0] + 1,)

    return TorchGraph("g", (TorchNode("x", feed=Feed("x", torch.float32, (4,))), node("slow", 0, run)), {"y": (1, 0)})


def test_writing_into_results_changes_neither_constants_nor_loaded_inputs() -> None:
    with TorchExecutor(build_program(views(), [0] * 4, logical_devices(1))) as executor:
        executor.load({"x": np.arange(4, dtype=np.float32)})
        first = {name: x.clone() for name, x in executor.infer().items()}
        for x in executor.infer().values():
            x.zero_()
        again = executor.infer()
    assert all(torch.equal(again[name], x) for name, x in first.items())
    assert again["w"].tolist() == [1.0] * 3


def test_results_do_not_follow_the_callers_buffer() -> None:
    given = np.arange(4, dtype=np.float32)
    with TorchExecutor(build_program(views(), [0] * 4, logical_devices(1))) as executor:
        inference = executor.submit({"x": given})
        results = inference.wait()
        given[:] = -1
        assert results["v"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
        assert results["x"].tolist() == [0.0, 1.0, 2.0, 3.0]
        assert inference.wait()["v"] is results["v"]


def test_a_result_of_its_own_is_handed_out_without_a_copy() -> None:
    made: list[Tensor] = []

    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        made.append(xs[0] + 1)
        return (made[0],)

    graph = TorchGraph("g", (TorchNode("x", feed=Feed("x", torch.float32, (4,))), node("a", 0, run)), {"y": (1, 0)})
    with TorchExecutor(build_program(graph, [0, 0], logical_devices(1))) as executor:
        assert executor.infer({"x": np.zeros(4, dtype=np.float32)})["y"] is made[0]


def test_a_constant_that_wants_gradients_gives_results_without() -> None:
    with TorchExecutor(build_program(views(), [0] * 4, logical_devices(1))) as executor:
        assert not any(x.requires_grad for x in executor.infer({"x": np.zeros(4, dtype=np.float32)}).values())


def test_loading_while_an_inference_is_in_flight_is_refused_and_works_afterwards() -> None:
    released, given = threading.Event(), {"x": np.zeros(4, dtype=np.float32)}
    with TorchExecutor(build_program(waiting(released), [0, 0], logical_devices(1)), count_memory=True) as executor:
        executor.load(given)
        inference = executor.submit()
        with pytest.raises(ExecutionError, match=r"inputs of 'g' are loaded between inferences, but 1 are in flight"):
            executor.load(given)
        released.set()
        assert inference.wait()["y"].tolist() == [1.0] * 4
        executor.load({"x": np.ones(4, dtype=np.float32)})
        assert executor.infer()["y"].tolist() == [2.0] * 4
        assert executor.held_memory_bytes == {"d0": 16}


def test_inputs_that_may_not_be_written_are_read_without_a_warning() -> None:
    given = np.arange(4, dtype=np.float32)
    given.flags.writeable = False
    with TorchExecutor(build_program(views(), [0] * 4, logical_devices(1))) as executor:
        assert executor.infer({"x": given})["x"].tolist() == [0.0, 1.0, 2.0, 3.0]
        executor.load({"x": np.broadcast_to(np.float32(2), (4,))})
        assert executor.infer()["v"].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_backend_that_cannot_be_made_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no more streams")

    program = build_program(views(), [0, 0, 1, 1], logical_devices(2))
    before = threading.active_count()
    monkeypatch.setattr(backend, "_channel_lane", fails)
    with pytest.raises(RuntimeError, match="no more streams"):
        TorchExecutor(program)
    assert threading.active_count() == before


def test_tasks_on_streams_run_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and events are stood in for: what is asked is what the enqueued op sees."""
    seen: list[bool] = []

    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        seen.append(torch.is_grad_enabled())
        return (xs[0],)

    event: Any = SimpleNamespace(record=lambda _: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    monkeypatch.setattr(lane_module, "new_event", lambda: event)
    graph = TorchGraph("g", (TorchNode("x", feed=Feed("x", torch.float32, (4,))), node("a", 0, run)), {"y": (1, 0)})
    program = build_program(graph, [0, 0], logical_devices(1))
    state = RunState(program, [None, None], {next(iter(program.feeds)): torch.zeros(4)}, [None])
    attempt, stream = SimpleNamespace(task=0), SimpleNamespace()
    lane = lane_module.StreamLane(lambda: (stream,))  # type: ignore[arg-type,return-value]
    assert not lane.start(attempt, state, Inbox())  # type: ignore[arg-type]
    assert seen == [False]
