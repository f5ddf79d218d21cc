"""Names of methods, rewards and performance hints.

A method is a ``...Placer`` class in a folder of this package, or an entry point of the group ``hsdag.placers`` of an
installed package; its ``name`` is the method's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

REWARDS = ("measured", "simulated", "hybrid")
"""Ways to value placements: measure all, simulate all, or simulate many and measure the promising ones."""

HINTS = {
    "latency": "LATENCY",
    "throughput": "THROUGHPUT",
    "tput": "THROUGHPUT",
    "cumulative_throughput": "CUMULATIVE_THROUGHPUT",
    "ctput": "CUMULATIVE_THROUGHPUT",
    "none": None,
}
"""OpenVINO's performance hints, by the names that benchmark_app uses for them."""

PLUG_INS = "hsdag.placers"
"""Group of the entry points by which other packages provide methods."""

_NAME = re.compile(r'^class \w+Placer\b(?:.*\n)+?    name = "([a-z-]+)"$', re.MULTILINE)


@cache
def method_modules() -> Mapping[str, str]:
    """Return the module of every method by name; files are read, not imported, as solvers and torch load slowly."""
    modules = {point.name: point.module for point in entry_points(group=PLUG_INS)}
    modules |= {
        name: ".".join((__package__, *file.relative_to(folder).with_suffix("").parts))
        for folder in map(Path, __path__)
        for file in folder.glob("*/**/*.py")
        for name in re.findall(_NAME, file.read_text(encoding="utf-8"))
    }
    return dict(sorted(modules.items()))


def method_names() -> tuple[str, ...]:
    """Return the name of every method, sorted."""
    return tuple(method_modules())
