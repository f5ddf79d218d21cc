"""The names of methods, rewards and hints: each class in a family's folder is the method that its ``name`` says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

REWARDS = ("measured", "simulated", "hybrid")
"""How a search judges placements: it measures all, simulates all, or simulates many and measures the promising."""

HINTS = {
    "latency": "LATENCY",
    "throughput": "THROUGHPUT",
    "tput": "THROUGHPUT",
    "cumulative_throughput": "CUMULATIVE_THROUGHPUT",
    "ctput": "CUMULATIVE_THROUGHPUT",
    "none": None,
}
"""OpenVINO's performance hints by the names that benchmark_app has for them."""

_NAME = re.compile(r'^class \w+Placer\b(?:.*\n)+?    name = "([a-z-]+)"$', re.MULTILINE)


@cache
def method_modules() -> Mapping[str, str]:
    """The module of every method by name; files are read, not imported, since solvers and torch load slowly."""
    folder = Path(__file__).parent
    modules = {
        name: ".".join((__package__, *file.relative_to(folder).with_suffix("").parts))
        for file in folder.glob("*/**/*.py")
        for name in re.findall(_NAME, file.read_text(encoding="utf-8"))
    }
    return dict(sorted(modules.items()))


def method_names() -> tuple[str, ...]:
    """Every method that ``--method`` takes."""
    return tuple(method_modules())
