"""Export placements to files that are used without hsdag. Listing the formats does not load OpenVINO."""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import iter_modules

PLUG_INS = "hsdag.exports"
"""Entry-point group for formats of other packages; an entry point names a module with a table ``EXPORTERS``."""

SHARED_MODULES = {"csv": "documents", "dot": "documents", "json": "documents"}
"""Module of each format that shares one with others; any other format has a module of its own name."""

BEHIND_FORMATS = ("base", "language", "library", "parts", "usage")
"""Modules of this folder that are not formats."""


def export_formats() -> tuple[str, ...]:
    """Return the names of all formats in alphabetical order."""
    others = {module.name for module in iter_modules(__path__)} - {*SHARED_MODULES.values(), *BEHIND_FORMATS}
    return tuple(sorted({*SHARED_MODULES, *others, *(entry.name for entry in entry_points(group=PLUG_INS))}))


def module_of(name: str) -> str:
    """Return the import path of the module of a format, in this folder or in another package."""
    elsewhere = {entry.name: entry.module for entry in entry_points(group=PLUG_INS)}
    return elsewhere.get(name, f"{__name__}.{SHARED_MODULES.get(name, name)}")
