"""The same on a GPU, where there is one: streams, events, captured graphs, partitions."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.torch_backend import (
    CapturedProgram,
    Feed,
    LogicalDevice,
    Program,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    build_program,
    logical_devices,
)
from hsdag.runtime.torch_backend.captured import _behind
from hsdag.runtime.torch_backend.streams import group_counts, partition_streams

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
SIZE = 128


def product(xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return (torch.tanh(xs[0] @ xs[-1]),)


def graph() -> TorchGraph:
    reads = [(0,), (0, 1), (1,), (2, 3), (3, 1), (4, 5), (6, 0), (7, 5)]
    nodes = [TorchNode("x", feed=Feed("x", torch.float32, (SIZE, SIZE)))]
    nodes += [TorchNode(f"op{i}", "MatMul", tuple((u, 0) for u in rs), product) for i, rs in enumerate(reads)]
    return TorchGraph("products", tuple(nodes), {"y": (8, 0), "z": (6, 0)})


def given(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((SIZE, SIZE)).astype(np.float32) / 8}


def on_cpu(inputs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    with TorchExecutor(build_program(graph(), [0] * 9, logical_devices(1))) as executor:
        return executor.infer(inputs)


def gpu_program(share: bool = False, partition: bool = False) -> Program:
    devices = logical_devices(3, "cuda:0", partition=partition)
    return build_program(graph(), np.arange(9) % 3, devices, share=share)


def assert_close(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (got[name].cpu() - value).abs().max() < 1e-4 * value.abs().max()


@on_gpu
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("barrier", [False, True])
def test_the_dynamic_loop_equals_the_cpu(share: bool, barrier: bool) -> None:
    with TorchExecutor(gpu_program(share), barrier=barrier) as executor:
        for seed in range(3):
            assert_close(executor.infer(given(seed)), on_cpu(given(seed)))


@on_gpu
@pytest.mark.parametrize("share", [False, True])
def test_a_captured_graph_equals_the_cpu_and_takes_new_inputs(share: bool) -> None:
    captured = CapturedProgram(gpu_program(share), given(0))
    try:
        assert_close(captured.infer(), on_cpu(given(0)))
        assert_close(captured.infer(given(1)), on_cpu(given(1)))
        assert_close(captured.infer(), on_cpu(given(1)))
    finally:
        captured.close()


@on_gpu
def test_graphs_are_captured_and_replayed_while_executors_work_on_as_many_streams_as_there_are() -> None:
    wanted, stop = on_cpu(given(0)), threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                executor.infer(given(0))
        except BaseException as error:  # noqa: BLE001 - the other thread tells of it
            failures.append(error)

    with TorchExecutor(gpu_program()) as executor:
        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(12):  # with 9 streams each they go round the pool several times
            captured = CapturedProgram(gpu_program(), given(0))
            assert_close(captured.infer(), wanted)
            captured.close()
        stop.set()
        worker.join()
    assert not failures
    with pytest.raises(ExecutionError, match="is closed; create another"):
        captured.infer()


@on_gpu
def test_gpu_and_cpu_work_together() -> None:
    devices = (LogicalDevice("gpu", "cuda:0"), LogicalDevice("cpu"))
    with TorchExecutor(build_program(graph(), np.arange(9) % 2, devices)) as executor:
        assert_close(executor.infer(given()), on_cpu(given()))


@on_gpu
def test_memory_of_the_gpu_returns_after_inferences() -> None:
    with TorchExecutor(gpu_program(), count_memory=True) as executor:
        executor.load(given())
        executor.infer()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(50):
            executor.infer()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before


@on_gpu
def test_out_of_memory_on_the_gpu_names_op_and_device_and_the_next_inference_works() -> None:
    is_huge = [True]

    def huge(xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (xs[0].repeat(1 << 30, 1),) if is_huge.pop() else (xs[0],)

    nodes = (TorchNode("x", feed=Feed("x", torch.float32, (SIZE, SIZE))), TorchNode("huge", "Tile", ((0, 0),), huge))
    program = build_program(TorchGraph("g", nodes, {"y": (1, 0)}), [0, 0], logical_devices(1, "cuda:0"))
    with TorchExecutor(program) as executor:
        with pytest.raises(ExecutionError, match=r"'huge' on device d0 failed: out of memory"):
            executor.infer(given())
        is_huge.append(False)
        assert executor.infer(given())["y"].shape == (SIZE, SIZE)


@on_gpu
def test_partitions_compute_the_same_or_say_why_there_are_none() -> None:
    streams, sentence = partition_streams(logical_devices(3, "cuda:0", partition=True))
    assert sentence
    assert len(streams) in (0, 3)
    with TorchExecutor(gpu_program(partition=True)) as executor:
        assert_close(executor.infer(given()), on_cpu(given()))


def test_devices_without_a_share_are_not_partitioned() -> None:
    assert partition_streams(logical_devices(3)) == ({}, "no device asks for a share of a GPU")


@pytest.mark.parametrize(
    ("shares", "groups"),
    [([0.25] * 4, [4] * 4), ([1 / 3] * 3, [5] * 3), ([0.5, 0.3, 0.01], [8, 4, 1]), ([1.0], [16])],
)
def test_equal_shares_get_equally_many_groups_and_none_gets_more_than_its_share(
    shares: list[float], groups: list[int]
) -> None:
    """16 groups of 8 multiprocessors, as on a GPU with 132."""
    assert group_counts(shares, 16) == groups


def test_shares_beyond_the_whole_gpu_are_refused() -> None:
    with pytest.raises(RuntimeError, match="come to 24 groups of multiprocessors, but the GPU has 16"):
        group_counts([0.5] * 3, 16)


def test_what_broke_a_capture_off_is_found_behind_the_errors_that_followed() -> None:
    first, joining, ending = (
        ExecutionError("'op' on device d0 failed"),
        RuntimeError("invalid"),
        RuntimeError("unjoined"),
    )
    joining.__context__, ending.__context__ = first, joining
    assert _behind(ending) is first
    assert _behind(RuntimeError("alone")) is None


@on_gpu
def test_a_task_that_cannot_be_captured_is_named_and_torch_goes_on_as_before() -> None:
    def asks_the_host(xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (xs[0] * float(xs[0].sum().item()),)

    nodes = (
        TorchNode("x", feed=Feed("x", torch.float32, (SIZE, SIZE))),
        TorchNode("bad", "Op", ((0, 0),), asks_the_host),
    )
    program = build_program(TorchGraph("g", nodes, {"y": (1, 0)}), [0, 0], logical_devices(1, "cuda:0"))
    before = torch.cuda.current_stream()
    with pytest.raises(ExecutionError, match="'bad' on device d0 failed"):
        CapturedProgram(program, given())
    assert torch.cuda.current_stream() == before
    assert float((torch.ones(4, device="cuda:0") * 2).sum()) == 8.0
