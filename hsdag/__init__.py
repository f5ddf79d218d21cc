"""hsdag finds, by measurement, which device should run which operation of a neural network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hsdag.version import __version__

if TYPE_CHECKING:
    from hsdag.api import ExportResult, compile_work_conserving, export, place, simulate, solve
    from hsdag.commands.bench import BenchResult, bench
    from hsdag.commands.outcome import PlaceResult
    from hsdag.commands.simulate import SimulateResult
    from hsdag.ir.errors import HsdagError
    from hsdag.ir.placement import Placement
    from hsdag.search.solve import SolveResult

_HOMES = {
    "BenchResult": "hsdag.commands.bench",
    "ExportResult": "hsdag.api",
    "HsdagError": "hsdag.ir.errors",
    "PlaceResult": "hsdag.commands.outcome",
    "Placement": "hsdag.ir.placement",
    "SimulateResult": "hsdag.commands.simulate",
    "SolveResult": "hsdag.search.solve",
    "bench": "hsdag.commands.bench",
    "compile_work_conserving": "hsdag.api",
    "export": "hsdag.api",
    "place": "hsdag.api",
    "simulate": "hsdag.api",
    "solve": "hsdag.api",
}

__all__ = [
    "BenchResult",
    "ExportResult",
    "HsdagError",
    "PlaceResult",
    "Placement",
    "SimulateResult",
    "SolveResult",
    "__version__",
    "bench",
    "compile_work_conserving",
    "export",
    "place",
    "simulate",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: OpenVINO and torch take seconds, 'hsdag --help' should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hsdag' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
