"""Find out, by measurement, which device should run which operation of a neural network.

Begin with ``hsdag.place("model.xml")``. Results are of the classes BenchResult, Comparison, Explanation, ExportResult,
Placement, PlaceResult, ReportResult, SimulateResult and SolveResult; errors that callers can correct are HsdagErrors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsdag.base.version import __version__

_LINKS = (Path(__file__).with_name(name) for name in ("ir", "features", "runtime", "models"))
if not all((link / "__init__.py").exists() for link in _LINKS):  # a checkout that was never installed
    __path__.append(str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from hsdag.api import compare, compile_model, compile_work_conserving, export, place, simulate, solve
    from hsdag.base.errors import HsdagError
    from hsdag.commands.bench import BenchResult, bench
    from hsdag.commands.compare import Comparison
    from hsdag.commands.doctor.examination import examine as doctor
    from hsdag.commands.explain.explain import explain
    from hsdag.commands.explain.explanation import Explanation
    from hsdag.commands.inspect import devices, inspect
    from hsdag.commands.place.result import PlaceResult
    from hsdag.commands.profile import profile
    from hsdag.commands.report.report import ReportResult, report
    from hsdag.exports.base import ExportResult
    from hsdag.ir.graph.computation_graph import from_networkx
    from hsdag.ir.placement.placement import Placement
    from hsdag.search.simulate import SimulateResult
    from hsdag.search.solution import SolveResult

_HOMES = {
    "api": ("compare", "compile_model", "compile_work_conserving", "export", "place", "simulate", "solve"),
    "commands.bench": ("BenchResult", "bench"),
    "commands.doctor.examination": ("examine as doctor",),
    "commands.inspect": ("devices", "inspect"),
    "commands.place.result": ("PlaceResult",),
    "commands.profile": ("profile",),
    "commands.explain.explain": ("explain",),
    "commands.compare": ("Comparison",),
    "exports.base": ("ExportResult",),
    "commands.report.report": ("ReportResult", "report"),
    "search.simulate": ("SimulateResult",),
    "base.errors": ("HsdagError",),
    "ir.graph.computation_graph": ("from_networkx",),
    "ir.placement.placement": ("Placement",),
    "commands.explain.explanation": ("Explanation",),
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
