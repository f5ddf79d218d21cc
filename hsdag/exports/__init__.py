"""Export of placements to files that are used without hsdag. The formats are listed without loading OpenVINO."""

from __future__ import annotations

from pkgutil import iter_modules

SHARED_MODULES = {
    "affinity": "documents",
    "cpp": "programs",
    "csv": "documents",
    "dot": "documents",
    "ir": "programs",
    "json": "documents",
    "ovms": "parts",
    "parts": "parts",
    "python": "programs",
}
"""The module of each format that shares one; any other format has a module of its name."""


def export_formats() -> tuple[str, ...]:
    """Names of the formats, in alphabetical order."""
    others = {module.name for module in iter_modules(__path__)} - {"base", *SHARED_MODULES.values()}
    return tuple(sorted({*SHARED_MODULES, *others}))
