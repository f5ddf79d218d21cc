"""Placers by name: each method is one file, imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Protocol, cast

from hsdag.ir.errors import OptionError
from hsdag.placers.base import Placer, PlacerSettings

PRESETS = ("default", "paper")

_METHODS = (
    "hsdag",
    "best-device",
    "met",
    "greedy",
    "heft",
    "cpop",
    "etf",
    "m-etf",
    "critical-path",
    "enumerative",
    "ea",
    "sa",
    "mincut",
    "pipeline",
    "cpsat",
    "milp",
    "milp-split",
)


_FAMILIES = ("lists", "cuts", "local", "exact", "learned")


class _Method(Protocol):
    """What the file of a method offers."""

    def make(self, settings: PlacerSettings) -> Placer:
        """A placer of this method."""


def method_names() -> tuple[str, ...]:
    """Every method that ``--method`` takes."""
    return tuple(name for name in _METHODS if importlib.util.find_spec(_module(name)) is not None)


def make_placer(method: str, settings: PlacerSettings | None = None) -> Placer:
    """A placer by name. Raises OptionError that lists the choices."""
    settings = settings or PlacerSettings()
    if method not in method_names():
        raise OptionError(f"unknown method {method!r}; choose one of {', '.join(method_names())}")
    if settings.preset not in PRESETS:
        raise OptionError(f"unknown preset {settings.preset!r}; choose one of {', '.join(PRESETS)}")
    return cast(_Method, importlib.import_module(_module(method))).make(settings)


def _module(method: str) -> str:
    """The module of a method: the file of its name in one of the families' folders."""
    name = method.replace("-", "_")
    modules = [f"hsdag.placers.{family}.{name}" for family in _FAMILIES]
    return next((module for module in modules if importlib.util.find_spec(module) is not None), modules[0])
