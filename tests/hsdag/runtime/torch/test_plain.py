"""Baselines without the engine: ops one after another on one device, and as a CUDA graph on a GPU that stands in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from hsdag.base.errors import ExecutionError
from hsdag.runtime.torch.devices import LogicalDevice
from hsdag.runtime.torch.graph import Feed, TorchGraph, TorchNode
from hsdag.runtime.torch.op import TensorFunction
from hsdag.runtime.torch.plain import PlainExecutor, PlainRequest, PlainStart
from hsdag.runtime.torch.program import build_program
from tests.hsdag.runtime.torch.fake_streams import FakeGpus, fake_gpus

Tensor = torch.Tensor
GIVEN = {"x": np.arange(4, dtype=np.float32)}


def plus(number: int) -> Callable[[Sequence[Tensor]], Tensor]:
    return lambda xs: sum(xs[1:], xs[0]) + number


def plain(
    device: LogicalDevice, runs: Sequence[TensorFunction], *, captured: bool = False, in_torch: bool = True
) -> PlainRequest:
    """A diamond of four ops: 1, 2 and 3 that read 1, and 4 that reads both."""
    reads = ((0,), (1,), (1,), (2, 3))
    nodes = [TorchNode("x", feed=Feed("x", torch.float32, (4,)))]
    for v, (sources, run) in enumerate(zip(reads, runs, strict=True), 1):
        nodes.append(TorchNode(str(v), "Add", tuple((u, 0) for u in sources), run, in_torch=in_torch))
    graph = TorchGraph("diamond", tuple(nodes), {"y": (4, 0), "z": (2, 0)})
    executor = PlainExecutor(build_program(graph, [0] * 5, [device]), captured=captured)
    executor.load(GIVEN)
    return PlainRequest(executor)


def on_gpu(gpus: FakeGpus, *, captured: bool) -> PlainRequest:
    device = LogicalDevice("g", "cuda:0")
    return plain(device, [gpus.kernel(str(v), device, plus(v)) for v in range(1, 5)], captured=captured)


def expected(given: np.ndarray) -> list[float]:
    return (2 * (given + 1) + 2 + 3 + 4).tolist()  # type: ignore[no-any-return]


def test_on_the_cpu_ops_run_with_the_threads_of_the_device_and_results_are_copies() -> None:
    threads: list[int] = []

    def noted(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        threads.append(torch.get_num_threads())
        return (plus(1)(xs),)

    before = torch.get_num_threads()
    others = [lambda xs, v=v: (plus(v)(xs),) for v in (2, 3, 4)]
    request = plain(LogicalDevice("d", "cpu", 2), [noted, *others])
    request.infer()
    request.wait()["y"].zero_()
    assert request.wait()["y"].tolist() == expected(GIVEN["x"])
    assert (threads, torch.get_num_threads(), request.latency > 0) == ([2], before, True)


def test_on_a_gpu_all_ops_are_enqueued_before_any_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpus(monkeypatch) as gpus:
        request = on_gpu(gpus, captured=False)
        request.start_async()
        assert (gpus.names("enqueue"), gpus.names("run")) == (["1", "2", "3", "4"], [])
        gpus.opened()
        assert request.wait()["y"].tolist() == expected(GIVEN["x"])


def test_an_inference_is_awaited_without_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpus(monkeypatch) as gpus:
        executor = on_gpu(gpus, captured=False).executor
        first, second = PlainStart(executor), PlainStart(executor)
        first.start_async()
        second.start_async()
        gpus.step(4)
        first.wait()
        assert gpus.names("run") == ["1", "2", "3", "4"]
        gpus.opened()
        second.wait()
        assert len(gpus.names("run")) == 8


def test_inputs_are_loaded_after_what_was_started_has_read_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpus(monkeypatch) as gpus:
        request = on_gpu(gpus, captured=False)
        request.start_async()
        before = request.executor.residents.values
        loading = threading.Thread(target=request.executor.load, args=({"x": -GIVEN["x"]},))
        loading.start()
        loading.join(0.05)
        assert request.executor.residents.values is before
        gpus.opened()
        loading.join()
        assert request.wait()["y"].tolist() == expected(GIVEN["x"])
        request.infer()
        assert request.wait()["y"].tolist() == expected(-GIVEN["x"])


def test_a_cuda_graph_is_captured_once_and_again_for_other_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpus(monkeypatch) as gpus:
        gpus.opened()
        request = on_gpu(gpus, captured=True)
        request.infer()
        assert request.wait()["y"].tolist() == expected(GIVEN["x"])
        enqueued = len(gpus.names("enqueue"))
        for _ in range(3):
            request.infer()
        assert len(gpus.names("enqueue")) == enqueued  # ops are not called any more
        assert len(gpus.names("run")) == enqueued - 4 + 4 * 4  # what was captured ran with each replay alone
        request.executor.load({"x": -GIVEN["x"]})
        request.infer()
        assert request.wait()["y"].tolist() == expected(-GIVEN["x"])


def test_an_op_that_fails_is_named_and_a_cuda_graph_holds_none_that_openvino_evaluates() -> None:
    def fail(_: Sequence[Tensor]) -> tuple[Tensor, ...]:
        raise RuntimeError("no room\nfor it")

    with pytest.raises(ExecutionError, match=r"^'1' on device d failed: no room$"):
        plain(LogicalDevice("d"), [fail] * 4).infer()
    with pytest.raises(ExecutionError, match="a CUDA graph cannot hold Add, which OpenVINO evaluates on the CPU"):
        plain(LogicalDevice("d"), [fail] * 4, captured=True, in_torch=False)
