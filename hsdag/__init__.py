"""hsdag finds, by measurement, which device should run which operation of a neural network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hsdag.version import __version__

if TYPE_CHECKING:
    from hsdag.api import compile_work_conserving, place, simulate, solve
    from hsdag.commands.bench import BenchResult, bench
    from hsdag.commands.explaining.explaining import explain
    from hsdag.commands.export import ExportResult, export
    from hsdag.commands.report import ReportResult, report
    from hsdag.commands.simulate import SimulateResult
    from hsdag.ir.errors import HsdagError
    from hsdag.ir.placement import Placement
    from hsdag.reports.explanation import Explanation
    from hsdag.search.result import PlaceResult
    from hsdag.search.solution import SolveResult

_HOMES = {
    "hsdag.api": ("compile_work_conserving", "place", "simulate", "solve"),
    "hsdag.commands.bench": ("BenchResult", "bench"),
    "hsdag.search.result": ("PlaceResult",),
    "hsdag.commands.explaining.explaining": ("explain",),
    "hsdag.commands.export": ("ExportResult", "export"),
    "hsdag.commands.report": ("ReportResult", "report"),
    "hsdag.commands.simulate": ("SimulateResult",),
    "hsdag.ir.errors": ("HsdagError",),
    "hsdag.ir.placement": ("Placement",),
    "hsdag.reports.explanation": ("Explanation",),
    "hsdag.search.solution": ("SolveResult",),
}

__all__ = [
    "BenchResult",
    "Explanation",
    "ExportResult",
    "HsdagError",
    "PlaceResult",
    "Placement",
    "ReportResult",
    "SimulateResult",
    "SolveResult",
    "__version__",
    "bench",
    "compile_work_conserving",
    "explain",
    "export",
    "place",
    "report",
    "simulate",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Public names are imported on first use: OpenVINO and torch take seconds, 'hsdag --help' should not."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'hsdag' has no attribute {name!r}")
