"""Reports: pictures of what ran where and when and of learning, tables, and the figures of the papers."""

from hsdag.reports.gantt import write_gantt
from hsdag.reports.html_table import markdown_table
from hsdag.reports.learning_curve import CurvePoint, TensorBoard, write_curve
from hsdag.reports.picture import check_picture

__all__ = [
    "CurvePoint",
    "TensorBoard",
    "check_picture",
    "markdown_table",
    "write_curve",
    "write_gantt",
]
