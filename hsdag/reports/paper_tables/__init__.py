"""Paper tables: the published figures that ``hsdag reproduce`` sets beside ours."""

from hsdag.reports.paper_tables.base import Figure, PaperTable
from hsdag.reports.paper_tables.tables import PAPER_TABLES, find_table

__all__ = ["PAPER_TABLES", "Figure", "PaperTable", "find_table"]
