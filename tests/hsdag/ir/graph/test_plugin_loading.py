"""Plugins that were loaded and unloaded, in whatever order, leave a process that can take a signal."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import signal, openvino as ov
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.devices import make_core
core = ov.Core()
for name in ("SLOW", "FAST"):
    DeviceSpec.parse(f"{name}=CPU").register(core)
del core
first = make_core((DeviceSpec.parse("CPU"),))
second = make_core((DeviceSpec.parse("CPU"),))
del first
del second
signal.signal(signal.SIGINT, lambda *_: print("handled"))
signal.raise_signal(signal.SIGINT)
"""
"""Two devices of one core, and two cores."""


def test_ctrl_c_after_plugins_are_gone_reaches_its_handler() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "handled\n", "")
