"""The names of methods, rewards and hints: each class in a family's folder is the method that its ``name`` says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

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
    families = [each for each in resources.files(__package__).iterdir() if each.joinpath("__init__.py").is_file()]
    modules = {
        name: f"{__package__}.{family.name}.{file.name.removesuffix('.py')}"
        for family in families
        for file in family.iterdir()
        if file.name.endswith(".py")
        for name in re.findall(_NAME, file.read_text(encoding="utf-8"))
    }
    return dict(sorted(modules.items()))


def method_names() -> tuple[str, ...]:
    """Every method that ``--method`` takes."""
    return tuple(method_modules())
