"""Reports: pictures of what ran where and when."""

from hsdag.reports.gantt import check_picture, write_gantt

__all__ = ["check_picture", "write_gantt"]
