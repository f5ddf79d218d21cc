"""Export of placements to files that are used without hsdag, one format per file, found by its name."""

from hsdag.ir.export.base import Exporter, ModelSource, export_formats, export_placement, written_files

__all__ = ["Exporter", "ModelSource", "export_formats", "export_placement", "written_files"]
