"""All tables by name."""

from __future__ import annotations

from hsdag.ir.errors import OptionError
from hsdag.reports.paper_tables import diviml, doppler, hsdag, placeto
from hsdag.reports.paper_tables.base import PaperTable

_PAPERS: tuple[tuple[PaperTable, ...], ...] = (hsdag.TABLES, doppler.TABLES, diviml.TABLES, placeto.TABLES)
PAPER_TABLES = {table.name: table for tables in _PAPERS for table in tables}


def find_table(name: str) -> PaperTable:
    """A table by name, such as doppler-2. Raises OptionError that lists the choices."""
    if name not in PAPER_TABLES:
        raise OptionError(f"unknown table {name!r}; choose one of {', '.join(PAPER_TABLES)}")
    return PAPER_TABLES[name]
