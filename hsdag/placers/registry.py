"""Placers by name."""

from __future__ import annotations

from collections.abc import Callable

from hsdag.ir.errors import OptionError
from hsdag.placers.base import Placer

PRESETS = ("default", "paper")


def _hsdag(preset: str, seed: int) -> Placer:
    from hsdag.learning.config import HsdagConfig
    from hsdag.placers.hsdag import HsdagPlacer

    return HsdagPlacer(HsdagConfig.paper() if preset == "paper" else HsdagConfig(), seed)


def _best_device(preset: str, seed: int) -> Placer:  # noqa: ARG001 - it has neither
    from hsdag.placers.best_device import BestDevicePlacer

    return BestDevicePlacer()


_METHODS: dict[str, Callable[[str, int], Placer]] = {"hsdag": _hsdag, "best-device": _best_device}


def method_names() -> tuple[str, ...]:
    """Every method that ``--method`` takes."""
    return tuple(_METHODS)


def make_placer(method: str, preset: str, seed: int) -> Placer:
    """A placer by name. Raises OptionError that lists the choices."""
    if method not in _METHODS:
        raise OptionError(f"unknown method {method!r}; choose one of {', '.join(_METHODS)}")
    if preset not in PRESETS:
        raise OptionError(f"unknown preset {preset!r}; choose one of {', '.join(PRESETS)}")
    return _METHODS[method](preset, seed)
