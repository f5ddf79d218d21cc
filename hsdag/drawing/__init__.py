"""Reports: pictures of what ran where and when and of learning, tables, and the figures of the papers."""

from hsdag.drawing.gantt import write_gantt
from hsdag.drawing.html_table import markdown_table
from hsdag.drawing.learning_curve import CurvePoint, TensorBoard, write_curve
from hsdag.drawing.picture import check_picture

__all__ = [
    "CurvePoint",
    "TensorBoard",
    "check_picture",
    "markdown_table",
    "write_curve",
    "write_gantt",
]
