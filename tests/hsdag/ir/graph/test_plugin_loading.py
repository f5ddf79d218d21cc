"""Plugins that were loaded and unloaded, in whatever order, leave a process that can take a signal."""

from __future__ import annotations

import subprocess
import sys

import pytest

DEVICES_OF_ONE_CORE = """
core = ov.Core()
for name in ("SLOW", "FAST"):
    DeviceSpec.parse(f"{name}=CPU").register(core)
del core
"""
TWO_CORES = """
first = make_core((DeviceSpec.parse("CPU"),))
second = make_core((DeviceSpec.parse("CPU"),))
del first
del second
"""


@pytest.mark.parametrize("program", [DEVICES_OF_ONE_CORE, TWO_CORES], ids=["devices of one core", "two cores"])
def test_ctrl_c_after_plugins_are_gone_reaches_its_handler(program: str) -> None:
    lines = [
        "import signal, openvino as ov",
        "from hsdag.ir.device import DeviceSpec",
        "from hsdag.runtime.machine.devices import make_core",
        program,
        "signal.signal(signal.SIGINT, lambda *_: print('handled'))",
        "signal.raise_signal(signal.SIGINT)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "handled\n", "")
