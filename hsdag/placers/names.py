"""The names of methods, rewards and hints: a file of a family's folder that defines PLACER is a method of that name."""

from __future__ import annotations

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

_DEFINES = "\nPLACER = "


@cache
def method_modules() -> Mapping[str, str]:
    """The module of every method by name; files are read, not imported, since solvers and torch load slowly."""
    families = [each for each in resources.files(__package__).iterdir() if each.joinpath("__init__.py").is_file()]
    found = {}
    for family in families:
        for file in family.iterdir():
            if file.name.endswith(".py") and _DEFINES in file.read_text(encoding="utf-8"):
                stem = file.name.removesuffix(".py")
                found[stem.replace("_", "-")] = f"{__package__}.{family.name}.{stem}"
    return dict(sorted(found.items()))


def method_names() -> tuple[str, ...]:
    """Every method that ``--method`` takes."""
    return tuple(method_modules())
