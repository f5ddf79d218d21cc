"""Export of placements to files that are used without hsdag, one format per file, found by its name."""

from hsdag.ir.export.base import Exporter, export_formats, export_placement

__all__ = ["Exporter", "export_formats", "export_placement"]
