"""The machine: its CUDA devices, shares of a GPU, and a GPU beside the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hsdag.commands.cuda_check.checks import Untestable
from hsdag.commands.cuda_check.modes import LIMIT_S, SIZE_ON_CPU, chain_program
from hsdag.commands.cuda_check.parity import BAR
from hsdag.runtime.platforms.devices import list_cuda
from hsdag.runtime.torch_backend import LogicalDevice, TorchExecutor
from hsdag.runtime.torch_backend.streams import partition_streams


def devices(given: Sequence[LogicalDevice]) -> str:
    """What torch sees."""
    if not any(device.is_cuda for device in given):
        built = "torch was built without CUDA" if torch.version.cuda is None else "torch sees no CUDA device"
        raise Untestable(f"{built}; the engine runs on logical devices of the CPU")
    return "; ".join(f"{each.name} {each.full_name}, {each.memory_bytes / 1e9:.0f} GB" for each in list_cuda())


def shares(given: Sequence[LogicalDevice]) -> str:
    """Two devices with half of the multiprocessors of a GPU each: the same results, and whether they are disjoint."""
    gpu = next((device for device in given if device.is_cuda), None)
    if gpu is None:
        raise Untestable("multiprocessors are those of a GPU")
    pair = [LogicalDevice(f"s{i}", gpu.torch_device, share=0.5) for i in range(2)]
    streams, sentence = partition_streams(pair)
    _same_as_cpu(pair)
    if not streams:
        raise Untestable(f"results are right, but {sentence}")
    return f"{sentence}; results are right"


def gpu_and_cpu(given: Sequence[LogicalDevice]) -> str:
    """A program over a GPU and the CPU."""
    gpu = next((device for device in given if device.is_cuda), None)
    if gpu is None:
        raise Untestable("it needs a GPU")
    worst = _same_as_cpu([gpu, LogicalDevice("cpu")])
    return f"largest relative difference from the CPU alone {worst:.1e}"


def _same_as_cpu(pair: Sequence[LogicalDevice]) -> float:
    """The largest relative difference of a program over ``pair`` from the same one on the CPU."""
    results = []
    for where in (pair, [LogicalDevice("cpu")]):
        program, inputs = chain_program(where, SIZE_ON_CPU)
        with TorchExecutor(program) as executor:
            results.append({name: x.cpu() for name, x in executor.infer(inputs, limit_s=LIMIT_S).items()})
    got, wanted = results
    worst = max(float((got[name] - x).abs().max() / x.abs().max()) for name, x in wanted.items())
    assert worst <= BAR, f"results differ from the CPU's by {worst:.1e}"
    return worst
