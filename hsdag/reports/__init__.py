"""Reports: pictures of what ran where and when, tables, and the figures of the papers."""

from hsdag.reports.gantt import check_picture, write_gantt
from hsdag.reports.markdown import markdown_table

__all__ = ["check_picture", "markdown_table", "write_gantt"]
