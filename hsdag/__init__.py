"""hsdag finds, by measurement, which device should run which operation of a neural network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hsdag.version import __version__

if TYPE_CHECKING:
    from hsdag.api import compile_work_conserving, place
    from hsdag.commands.outcome import Outcome
    from hsdag.ir.placement import Placement
    from hsdag.search.options import PlaceOptions

__all__ = ["Outcome", "PlaceOptions", "Placement", "__version__", "compile_work_conserving", "place"]

_HOMES = {
    "Outcome": "hsdag.commands.outcome",
    "PlaceOptions": "hsdag.search.options",
    "Placement": "hsdag.ir.placement",
    "compile_work_conserving": "hsdag.api",
    "place": "hsdag.api",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: OpenVINO and torch take seconds, 'hsdag --help' should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hsdag' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
