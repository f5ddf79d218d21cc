"""hsdag finds, by measurement, which device should run which operation of a neural network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hsdag.version import __version__

if TYPE_CHECKING:
    from hsdag.api import compile_model, compile_work_conserving, place, simulate, solve
    from hsdag.benchmarking.bench import BenchResult, bench
    from hsdag.explaining.explaining import explain
    from hsdag.explaining.explanation import Explanation
    from hsdag.exports.base import ExportResult, export
    from hsdag.ir.errors import HsdagError
    from hsdag.ir.placement.placement import Placement
    from hsdag.placing.result import PlaceResult
    from hsdag.reporting.report import ReportResult, report
    from hsdag.solving.simulate import SimulateResult
    from hsdag.solving.solution import SolveResult

_HOMES = {
    "hsdag.api": ("compile_model", "compile_work_conserving", "place", "simulate", "solve"),
    "hsdag.benchmarking.bench": ("BenchResult", "bench"),
    "hsdag.placing.result": ("PlaceResult",),
    "hsdag.explaining.explaining": ("explain",),
    "hsdag.exports.base": ("ExportResult", "export"),
    "hsdag.reporting.report": ("ReportResult", "report"),
    "hsdag.solving.simulate": ("SimulateResult",),
    "hsdag.ir.errors": ("HsdagError",),
    "hsdag.ir.placement.placement": ("Placement",),
    "hsdag.explaining.explanation": ("Explanation",),
    "hsdag.solving.solution": ("SolveResult",),
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
    "compile_model",
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
