"""The recipe of every table."""

from __future__ import annotations

from hsdag.commands.reproducing import diviml_tables, doppler_tables, hsdag_tables, placeto_tables
from hsdag.commands.reproducing.base import Recipe

RECIPES: dict[str, Recipe] = {
    **hsdag_tables.RECIPES,
    **doppler_tables.RECIPES,
    **diviml_tables.RECIPES,
    **placeto_tables.RECIPES,
}
