"""Loading of a placement from memory, a file, or the answer of a search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.base.errors import SearchError, option
from hsdag.ir.placement.placement import Placement, refuse_model

if TYPE_CHECKING:
    from hsdag.commands.place.result import PlaceResult


def load_placement(source: str | Path | Placement | PlaceResult) -> Placement:
    """Return a placement as it is, from its file, or from the result or run folder of a search.

    Raises SearchError for a model, and for a folder without a finished search.
    """
    if isinstance(source, Placement):
        return source
    if not isinstance(source, str | Path):
        return source.placement
    refuse_model(source)
    if not Path(source).is_dir():
        return Placement.load(source)

    from hsdag.commands.place.run_folder import RunFolder

    placement = RunFolder.load(source).placement
    if placement is None:
        raise SearchError(
            f"the search in {source} has not ended: finish it with {option('resume')}, or name a placement file"
        )
    return placement
