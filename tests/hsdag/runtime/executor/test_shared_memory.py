"""SharedMemory: who writes and reads a tensor decides where it lives; without a GPU context the request keeps it."""

from __future__ import annotations

import openvino as ov
import pytest

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.executor.openvino_backend import SharedMemory, memory_of

CPU, GPU, OTHER = DeviceSpec("CPU_0", "CPU"), DeviceSpec("GPU.0", "GPU.0"), DeviceSpec("GPU.1", "GPU.1")


@pytest.mark.parametrize(
    ("writer", "readers", "is_result", "home"),
    [
        (CPU, (CPU,), False, None),
        (CPU, (), True, None),
        (GPU, (GPU, GPU), False, "device"),
        (GPU, (GPU,), True, "host"),
        (GPU, (CPU,), False, "host"),
        (CPU, (GPU,), False, "host"),
        (GPU, (OTHER,), False, "host"),
        (GPU, (GPU, CPU), False, "host"),
    ],
)
def test_a_tensor_lives_where_all_who_use_it_can_reach_it(
    writer: DeviceSpec, readers: tuple[DeviceSpec, ...], is_result: bool, home: str | None
) -> None:
    assert memory_of(writer, readers, is_result) == home


def test_where_no_context_can_be_had_the_ordinary_tensor_stays() -> None:
    memory = SharedMemory(ov.Core(), (CPU, DeviceSpec("GPU.7", "GPU.7")))
    assert memory.tensor(1, [0], False, ov.Type.f32, ov.Shape([2, 3])) is None


def test_cpu_devices_share_the_tensors_of_their_requests() -> None:
    memory = SharedMemory(ov.Core(), (CPU, CPU))
    assert memory.tensor(0, [1], False, ov.Type.f32, ov.Shape([2, 3])) is None
