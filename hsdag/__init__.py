"""Find out, by measurement, which device should run which operation of a neural network.

Begin with ``hsdag.place("model.xml")``. Results are of the classes BenchResult, Comparison, Explanation, ExportResult,
Placement, PlaceResult, ReportResult, SimulateResult and SolveResult; errors that callers can correct are HsdagErrors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LINKS = (Path(__file__).with_name(name) for name in ("ir", "features", "runtime", "models"))
if not all((link / "__init__.py").exists() for link in _LINKS):  # a checkout that was never installed
    __path__.append(str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from hsdag.api import compare, compile_model, compile_work_conserving, export, place, simulate, solve
    from hsdag.benchmarking import BenchResult, bench
    from hsdag.comparing import Comparison
    from hsdag.diagnosis.examination import examine as doctor
    from hsdag.diagnosis.inspect import devices, inspect
    from hsdag.exports.base import ExportResult
    from hsdag.ir.errors import HsdagError
    from hsdag.ir.graph.computation_graph import from_networkx
    from hsdag.ir.placement.placement import Placement
    from hsdag.placing.result import PlaceResult
    from hsdag.profiling import profile
    from hsdag.reporting.explaining import explain
    from hsdag.reporting.explanation import Explanation
    from hsdag.reporting.report import ReportResult, report
    from hsdag.search.simulate import SimulateResult
    from hsdag.search.solution import SolveResult

_HOMES = {
    "api": ("compare", "compile_model", "compile_work_conserving", "export", "place", "simulate", "solve"),
    "benchmarking": ("BenchResult", "bench"),
    "diagnosis.examination": ("examine as doctor",),
    "diagnosis.inspect": ("devices", "inspect"),
    "placing.result": ("PlaceResult",),
    "profiling": ("profile",),
    "reporting.explaining": ("explain",),
    "comparing": ("Comparison",),
    "exports.base": ("ExportResult",),
    "reporting.report": ("ReportResult", "report"),
    "search.simulate": ("SimulateResult",),
    "ir.errors": ("HsdagError",),
    "ir.graph.computation_graph": ("from_networkx",),
    "ir.placement.placement": ("Placement",),
    "reporting.explanation": ("Explanation",),
    "search.solution": ("SolveResult",),
}

__all__ = [
    "BenchResult",
    "Comparison",
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
    "compare",
    "compile_model",
    "compile_work_conserving",
    "devices",
    "doctor",
    "explain",
    "export",
    "from_networkx",
    "inspect",
    "place",
    "profile",
    "report",
    "simulate",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Import a public name on its first use: OpenVINO and torch take seconds to load, and 'hsdag --help' should not."""
    from importlib import import_module

    for home, names in _HOMES.items():
        for entry in names:
            original, _, public = entry.partition(" as ")
            if name == (public or original):
                return getattr(import_module(f"hsdag.{home}"), original)
    raise AttributeError(f"module 'hsdag' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of functions, not of classes: help(hsdag) would print all that these inherit from pydantic."""
    return sorted(name for name in __all__ if not name[0].isupper())
