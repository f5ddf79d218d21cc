"""Explain why OpenVINO lists no GPU or NPU on Linux, and what to install or permit."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Need(NamedTuple):
    """Needs of a plugin: device nodes below /dev, the option that passes them to a container, driver packages."""

    nodes: str
    container: str
    packages: str


NEEDS = {
    "GPU": Need("dri/renderD*", "--device /dev/dri", "intel-opencl-icd (and libze-intel-gpu1, libze1)"),
    "NPU": Need("accel/accel*", "--device /dev/accel", "intel-driver-compiler-npu, intel-level-zero-npu and libze1"),
}
"""Requirements by plugin; packages have their names in Debian and Ubuntu."""


def absent_devices(
    listed: Sequence[str],
    dev: Path = Path("/dev"),
    may_open: Callable[[Path], bool] = lambda node: os.access(node, os.R_OK | os.W_OK),
) -> dict[str, str]:
    """Return, by plugin, why OpenVINO lists no device of it and what to do; plugins of ``listed`` devices are left out.

    Empty on systems other than Linux.

    Args:
        listed: Names of the devices that OpenVINO lists.
        dev: Folder of device nodes.
        may_open: Function that says whether a node can be opened.
    """
    reasons: dict[str, str] = {}
    for plugin, need in NEEDS.items() if sys.platform == "linux" else ():
        if any(name.partition(".")[0] == plugin for name in listed):
            continue
        nodes = sorted(dev.glob(need.nodes))
        first = dev / need.nodes
        if not nodes:
            reasons[plugin] = (
                f"there is no {first}: the machine has none, the kernel no driver for it, or this is a container that "
                f"was started without {need.container}"
            )
        elif not any(map(may_open, nodes)):
            node = nodes[0]
            reasons[plugin] = (
                f"{node} cannot be opened: add your user to its group, as a rule render (sudo usermod -aG render "
                f"$USER), and log in again, or start the container with --group-add $(stat -c %g {node})"
            )
        else:
            reasons[plugin] = f"{nodes[0]} is there, but no driver that OpenVINO uses: install {need.packages}"
    return reasons
