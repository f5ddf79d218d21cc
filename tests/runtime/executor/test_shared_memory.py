"""SharedMemory: who writes and reads a tensor decides where it lives; without a GPU context the request keeps it."""

from __future__ import annotations

import openvino as ov
import pytest

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.executor.shared_memory import Home, SharedMemory, home_of

CPU, GPU, OTHER = DeviceSpec("CPU_0", "CPU"), DeviceSpec("GPU.0", "GPU.0"), DeviceSpec("GPU.1", "GPU.1")


@pytest.mark.parametrize(
    ("writer", "readers", "is_result", "home"),
    [
        (CPU, (CPU,), False, Home.REQUEST),
        (CPU, (), True, Home.REQUEST),
        (GPU, (GPU, GPU), False, Home.DEVICE),
        (GPU, (GPU,), True, Home.HOST),
        (GPU, (CPU,), False, Home.HOST),
        (CPU, (GPU,), False, Home.HOST),
        (GPU, (OTHER,), False, Home.HOST),
        (GPU, (GPU, CPU), False, Home.HOST),
    ],
)
def test_a_tensor_lives_where_all_who_use_it_can_reach_it(
    writer: DeviceSpec, readers: tuple[DeviceSpec, ...], is_result: bool, home: Home
) -> None:
    assert home_of(writer, readers, is_result) is home


def test_where_no_context_can_be_had_the_ordinary_tensor_stays() -> None:
    memory = SharedMemory(ov.Core(), (CPU, DeviceSpec("GPU.7", "GPU.7")))
    assert memory.tensor(1, [0], False, ov.Type.f32, ov.Shape([2, 3])) is None


def test_cpu_devices_share_the_tensors_of_their_requests() -> None:
    memory = SharedMemory(ov.Core(), (CPU, CPU))
    assert memory.tensor(0, [1], False, ov.Type.f32, ov.Shape([2, 3])) is None
