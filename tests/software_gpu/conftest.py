"""Tests on OpenVINO's GPU plugin, over OpenCL on a CPU: docs/architecture.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from hsdag.runtime.measuring import effort, pair_profiler

HERE = Path(__file__).parent
GPUS = ("GPU.0", "GPU.1")
F32 = "[INFERENCE_PRECISION_HINT=f32]"
CPU, GPU_0, GPU_1 = f"CPU{F32}", f"GPU.0{F32}", f"GPU.1{F32}"


@cache
def software_gpus() -> tuple[str, ...]:
    """The GPUs of this process that are software ones, with what they call themselves."""
    core = ov.Core()
    names = {name: str(core.get_property(name, "FULL_DEVICE_NAME")) for name in core.available_devices if name in GPUS}
    return tuple(f"{name}: {full}" for name, full in names.items() if full.startswith("Software GPU"))


@pytest.fixture(autouse=True, scope="session")
def small_probes() -> Iterator[None]:
    """Probes between devices are small: a 1x1 convolution of 2 MiB takes a software GPU half a second."""
    with pytest.MonkeyPatch.context() as patch:
        small = tuple((tensors, min(size, 1 << 16)) for tensors, size in effort.PROBES)
        patch.setattr(pair_profiler, "PROBES", small)
        patch.setattr(pair_profiler, "SYNC_BYTES", (1 << 14, 1 << 15, 1 << 16))
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the report ends with, so that nobody takes a figure of it for one of a GPU."""
    found = ", ".join(software_gpus()) or "none"
    terminalreporter.write_line(f"These GPUs were software, their times say nothing about a GPU: {found}")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Mark what lies in this folder, and skip it where there are no software GPUs."""
    skip = pytest.mark.skip(reason="there are no software GPUs here: run 'make test-gpu'")
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker("software_gpu")
            if len(software_gpus()) < len(GPUS):
                item.add_marker(skip)
