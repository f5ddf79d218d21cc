"""Faults and memory: what fails ends its own inference alone, limits hold, and memory is given back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from hsdag.commands.cuda_check.checks import Untestable
from hsdag.commands.cuda_check.modes import LIMIT_S, chain_program
from hsdag.ir.errors import ExecutionError
from hsdag.runtime.torch_backend import Feed, LogicalDevice, TorchExecutor, TorchGraph, TorchNode, build_program
from hsdag.runtime.torch_backend.graph import TensorFunction

SIDE = 64
HANG_S, SLEEP_S = 0.2, 0.5
SLEEP_CYCLES = 2_000_000_000
"""Of a GPU, about a second."""

INFERENCES = 20


def _failed(executor: TorchExecutor, limit_s: float, *wanted: str) -> str:
    """The message of an inference that must fail, with all that it must say."""
    try:
        executor.infer(limit_s=limit_s)
    except ExecutionError as error:
        message = " ".join(str(error).split())
        missing = [word for word in wanted if word not in message]
        assert not missing, f"the error does not name {' and '.join(missing)}: {message}"
        return message
    raise AssertionError("the inference should have failed, and did not")


def _once(device: LogicalDevice, does: TensorFunction, wanted: str, limit_s: float = LIMIT_S) -> str:
    """One op that fails at its first call: the error names op and device, and the next inference is right."""
    calls = [does]
    run: TensorFunction = lambda xs: calls.pop()(xs) if calls else (xs[0] + 1,)  # noqa: E731 - typed
    nodes = (TorchNode("x", feed=Feed("x", torch.float32, (SIDE, SIDE))), TorchNode("odd op", "Add", ((0, 0),), run))
    with TorchExecutor(build_program(TorchGraph("fault", nodes, {"y": (1, 0)}), [0, 0], [device])) as executor:
        executor.load({"x": np.ones((SIDE, SIDE), dtype=np.float32)})
        message = _failed(executor, limit_s, "odd op", device.name, wanted)
        found = executor.infer(limit_s=LIMIT_S)["y"].cpu()
    assert torch.equal(found, torch.full((SIDE, SIDE), 2.0)), "the inference after the failed one is wrong"
    return message


def failing_op(devices: Sequence[LogicalDevice]) -> str:
    """An op that raises."""

    def raises(_: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        raise RuntimeError("on purpose")

    return f"the next inference is right; reported as: {_once(devices[0], raises, 'on purpose')}"


def hanging_op(devices: Sequence[LogicalDevice]) -> str:
    """An op that takes longer than the limit."""

    def sleeps(xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if xs[0].is_cuda:  # what an op enqueues may hang, not the thread that enqueues it
            torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        else:
            time.sleep(SLEEP_S)
        return (xs[0],)

    return f"the next inference is right; reported as: {_once(devices[0], sleeps, '', HANG_S)}"


def memory_limit(devices: Sequence[LogicalDevice]) -> str:
    """A device with room for the inputs and little more refuses; one with ample room runs the program."""
    program, inputs = chain_program(devices[:1])
    with TorchExecutor(program, count_memory=True) as executor:
        executor.load(inputs)
        (held_bytes,) = executor.held_memory_bytes.values()
        executor.infer(limit_s=LIMIT_S)
        (peak_bytes,) = executor.peak_memory_bytes.values()
    tight, ample = replace(devices[0], memory_bytes=held_bytes + 1), replace(devices[0], memory_bytes=4.0 * peak_bytes)
    with TorchExecutor(replace(program, devices=(tight,))) as executor:
        executor.load(inputs)
        message = _failed(executor, LIMIT_S, "out of memory", tight.name)
    with TorchExecutor(replace(program, devices=(ample,))) as executor:
        executor.load(inputs)
        executor.infer(limit_s=LIMIT_S)
    return f"inputs {held_bytes / 1e6:.1f} MB, peak {peak_bytes / 1e6:.1f} MB; with too little: {message}"


def memory_returns(devices: Sequence[LogicalDevice]) -> str:
    """After many inferences each device holds what it held after the first."""
    program, inputs = chain_program(devices)
    gpus = {device.physical for device in devices if device.is_cuda}
    with TorchExecutor(program, count_memory=True) as executor:
        executor.load(inputs)
        executor.infer(limit_s=LIMIT_S)
        before = executor.held_memory_bytes, _allocated(gpus)
        executor.repeated(INFERENCES, limit_s=LIMIT_S)
        after = executor.held_memory_bytes, _allocated(gpus)
    assert before == after, f"after {INFERENCES} inferences devices hold {after}, after the first {before}"
    return f"{INFERENCES} inferences left nothing behind"


def out_of_memory(devices: Sequence[LogicalDevice]) -> str:
    """An op that requests more than the GPU has."""
    gpu = next((device for device in devices if device.is_cuda), None)
    if gpu is None:
        raise Untestable("the memory of a GPU needs a GPU")
    huge = torch.cuda.get_device_properties(gpu.physical).total_memory // 4 + 1
    message = _once(gpu, lambda xs: (torch.empty(2 * huge, dtype=xs[0].dtype, device=xs[0].device),), "out of memory")
    return f"the next inference is right; reported as: {message}"


def _allocated(gpus: set[torch.device]) -> dict[str, int]:
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
    return {str(gpu): torch.cuda.memory_allocated(gpu) for gpu in gpus}
