"""What every benchmark shares: its options, and what it ran on, which is printed with every figure."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch

from hsdag import __version__

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # tests have references that answers are checked with

ONE = "INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32"
"""Properties of a CPU device of one thread."""


def machine() -> str:
    """One line: processor threads, load, and versions."""
    load = os.getloadavg()[0]
    name = ov.Core().get_property("CPU", "FULL_DEVICE_NAME")
    return (
        f"{name}, {os.cpu_count()} threads, load {load:.1f}; hsdag {__version__}, OpenVINO {ov.get_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    )


def options(doc: str | None, parts: Iterable[str] = (), **defaults: Any) -> argparse.Namespace:
    """Options by name and default, which has their type, or a pair of a default and what --help says of them.

    All of the benchmark's ``parts`` are asked for by default. Prints what it runs on.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if parts:
        parser.add_argument("parts", nargs="*", metavar="PART", default=list(parts), help=f"of {', '.join(parts)}")
    for name, given in defaults.items():
        default, about = given if isinstance(given, tuple) else (given, "")
        about = about if default in (None, False, "") else f"{about} (default: %(default)s)".strip()
        how: dict[str, Any] = {"type": type(default)} if isinstance(default, (int, float, str)) else {}
        if isinstance(default, list):
            how = {"type": type(default[0]), "nargs": "+"} if default else {"action": "append"}
        elif default is False:
            how = {"action": "store_true"}
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=about, **how)
    found = parser.parse_args()
    if unknown := set(getattr(found, "parts", ())) - set(parts):
        parser.error(f"no part is called {unknown.pop()!r}")
    print(machine(), flush=True)
    return found
