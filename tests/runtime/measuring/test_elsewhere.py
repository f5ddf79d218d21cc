"""What another machine has measured, scaled to this one."""

from __future__ import annotations

from pathlib import Path

from hsdag.ir import DeviceSpec
from hsdag.runtime.measuring.messages import OpTimes, WorkerSetup
from hsdag.runtime.measuring.profiler import scaled
from hsdag.runtime.measuring.worker import Worker


def test_all_that_is_seconds_is_scaled_and_nothing_else(tiny_resnet: Path) -> None:
    worker = Worker(WorkerSetup(tiny_resnet, (DeviceSpec.parse("A=CPU"),)))
    answer = worker.op_times(OpTimes("CPU_A", None, "CPU_A", 2, 0.1))
    found = scaled(answer, 2.0)
    primitives = zip(answer["primitives"], found["primitives"], strict=True)
    assert all([ops, 2 * s, *rest] == after for (ops, s, *rest), after in primitives)
    for name in answer.keys() - {"primitives"}:
        assert found[name] == (2 * answer[name] if name.endswith("_s") else answer[name])
