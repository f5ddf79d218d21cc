"""The names of methods, rewards and hints: each class in a family's folder is the method that its ``name`` says.

So is each entry point of the group ``hsdag.placers`` of an installed package, whose name is the method's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
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

PLUG_INS = "hsdag.placers"
"""The group of entry points that are methods of other packages."""

_NAME = re.compile(r'^class \w+Placer\b(?:.*\n)+?    name = "([a-z-]+)"$', re.MULTILINE)


@cache
def method_modules() -> Mapping[str, str]:
    """The module of every method by name; files are read, not imported, since solvers and torch load slowly."""
    modules = {each.name: each.module for each in entry_points(group=PLUG_INS)}
    modules |= {
        name: ".".join((__package__, *file.relative_to(folder).with_suffix("").parts))
        for folder in map(Path, __path__)
        for file in folder.glob("*/**/*.py")
        for name in re.findall(_NAME, file.read_text(encoding="utf-8"))
    }
    return dict(sorted(modules.items()))


def method_names() -> tuple[str, ...]:
    """Every method that ``--method`` takes."""
    return tuple(method_modules())
