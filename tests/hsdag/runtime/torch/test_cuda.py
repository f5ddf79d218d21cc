"""The executor on a GPU, where there is one: streams, events, copies and memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hsdag.base.errors import ExecutionError
from hsdag.runtime.torch.devices import LogicalDevice, logical_devices
from hsdag.runtime.torch.executor import TorchExecutor
from hsdag.runtime.torch.graph import Feed, TorchGraph, TorchNode
from hsdag.runtime.torch.plain import PlainExecutor
from hsdag.runtime.torch.program import Program, build_program

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


def gpu_program() -> Program:
    return build_program(graph(), np.arange(9) % 3, logical_devices(3, "cuda:0"))


@on_gpu
@pytest.mark.parametrize("names", [["cuda:0"] * 3, ["cuda:0", "cpu"]])
def test_gpus_alone_and_with_the_cpu_give_what_the_cpu_gives(names: list[str]) -> None:
    devices = [LogicalDevice(f"d{d}", name) for d, name in enumerate(names)]
    with (
        TorchExecutor(build_program(graph(), np.arange(9) % len(names), devices)) as mixed,
        TorchExecutor(build_program(graph(), [0] * 9, logical_devices(1))) as on_cpu,
    ):
        for seed in range(3):
            found, wanted = mixed.infer(given(seed)), on_cpu.infer(given(seed))
            assert found.keys() == wanted.keys()
            assert all((found[name].cpu() - x).abs().max() < 1e-4 * x.abs().max() for name, x in wanted.items())


@on_gpu
@pytest.mark.parametrize("captured", [False, True])
def test_a_gpu_without_the_engine_gives_what_the_cpu_gives(captured: bool) -> None:
    with (
        PlainExecutor(build_program(graph(), [0] * 9, logical_devices(1, "cuda:0")), captured=captured) as plain,
        TorchExecutor(build_program(graph(), [0] * 9, logical_devices(1))) as on_cpu,
    ):
        for seed in range(3):
            plain.load(given(seed))
            plain.start()
            found, wanted = plain.outputs(), on_cpu.infer(given(seed))
            assert all((found[name].cpu() - x).abs().max() < 1e-4 * x.abs().max() for name, x in wanted.items())


@on_gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16", "f16"])
def test_products_of_a_gpu_are_rounded_as_it_says(precision: str) -> None:
    device = LogicalDevice("g", "cuda:0", precision=precision)
    with (
        TorchExecutor(build_program(graph(), [0] * 9, (device,))) as rounded,
        TorchExecutor(build_program(graph(), [0] * 9, logical_devices(1))) as on_cpu,
    ):
        found, wanted = rounded.infer(given()), on_cpu.infer(given())
        assert all(1e-6 < (found[name].cpu() - x).abs().max() / x.abs().max() < 0.05 for name, x in wanted.items())


@on_gpu
def test_memory_of_the_gpu_returns_after_inferences() -> None:
    with TorchExecutor(gpu_program()) as executor:
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
