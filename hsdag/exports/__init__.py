"""Export of placements to files that are used without hsdag. The formats are listed without loading OpenVINO."""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import iter_modules

PLUG_INS = "hsdag.exports"
"""The group of entry points that are formats of other packages: modules with a table ``EXPORTERS``."""

SHARED_MODULES = {"csv": "documents", "dot": "documents", "json": "documents"}
"""The module of each format that shares one; any other format has a module of its name."""

BEHIND_FORMATS = ("base", "language", "library", "parts", "usage")
"""The modules that are no format."""


def export_formats() -> tuple[str, ...]:
    """Names of the formats, in alphabetical order."""
    others = {module.name for module in iter_modules(__path__)} - {*SHARED_MODULES.values(), *BEHIND_FORMATS}
    return tuple(sorted({*SHARED_MODULES, *others, *(each.name for each in entry_points(group=PLUG_INS))}))


def module_of(name: str) -> str:
    """Return the module that has a format of ``export_formats``: one of this folder, or of another package."""
    elsewhere = {each.name: each.module for each in entry_points(group=PLUG_INS)}
    return elsewhere.get(name, f"{__name__}.{SHARED_MODULES.get(name, name)}")
