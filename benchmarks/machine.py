"""What a benchmark ran on: printed with every figure."""

from __future__ import annotations

import os
import platform

import numpy as np
import openvino as ov
import torch

from hsdag.version import __version__


def machine() -> str:
    """One line: processor threads, load, and versions."""
    load = os.getloadavg()[0]
    name = ov.Core().get_property("CPU", "FULL_DEVICE_NAME")
    return (
        f"{name}, {os.cpu_count()} threads, load {load:.1f}; hsdag {__version__}, OpenVINO {ov.get_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    )
