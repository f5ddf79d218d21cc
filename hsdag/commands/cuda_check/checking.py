"""check_cuda: makes all checks of the CUDA engine, in a process of its own that a crash or a hang does not outlive."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from hsdag.commands.cuda_check.checks import CHECKS, Check, DeviceSetup
from hsdag.commands.cuda_check.report import CudaReport, Ending, Item
from hsdag.ir.errors import HsdagError
from hsdag.ir.processes import CandidateFailed, WorkerClient, WorkerDefect
from hsdag.runtime.measuring.messages import worker_client
from hsdag.version import __version__

LIMIT_S = 120.0
"""How long one check may take before it counts as hanging."""

LOGICAL = "A=cpu[threads=1],B=cpu[threads=1]"
"""What stands in where there is no CUDA device."""

WORKER = (sys.executable, "-m", "hsdag.commands.cuda_check.worker")


def check_cuda(
    devices: str | None = None,
    *,
    only: Sequence[str] | None = None,
    on_step: Callable[[str], None] = lambda _: None,
    limit_s: float = LIMIT_S,
    command: Sequence[str] = WORKER,
) -> CudaReport:
    """Check the CUDA engine on ``devices`` as ``--devices`` takes them, by default all CUDA devices.

    Where there is none, two logical devices of the CPU stand in, and the report says so. A check that fails, crashes
    or takes more than ``limit_s`` is an item of the report and ends nothing else; ``only`` names the ones to make.
    Raises DeviceError for devices that are not here, or are no torch devices.
    """
    from hsdag.runtime.platforms.devices import list_cuda
    from hsdag.runtime.torch_backend.specs import parse_torch_devices

    found = list_cuda()
    specs = parse_torch_devices(devices if devices is not None or found else LOGICAL)
    hardware = {each.name: f"{each.full_name}, {each.memory_bytes / 1e9:.0f} GB" for each in found}
    used = {spec.plugin: hardware[spec.plugin] for spec in specs if spec.plugin in hardware}
    items = []
    with worker_client(DeviceSetup(specs), command) as client:
        for name, _, _ in CHECKS:
            if only is None or name in only:
                on_step(f"checking {name}")
                items.append(_made(client, name, limit_s))
    return CudaReport(tuple(spec.name for spec in specs), _machine() | used, any(used), tuple(items))


def _made(client: WorkerClient, name: str, limit_s: float) -> Item:
    """A check as an item, however it ends."""
    begin_s = time.perf_counter()
    try:
        return client.call(Check(name), limit_s)
    except (CandidateFailed, HsdagError, WorkerDefect) as failure:
        client.restart()  # whatever it left behind does not spoil the next check
        return Item(name, Ending.FAIL, " ".join(str(failure).split()), time.perf_counter() - begin_s)


def _machine() -> dict[str, str]:
    found = {"hsdag": __version__}
    for package in ("torch", "openvino"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found
