"""Loading of a placement from memory, a file, or the answer of a search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.base.errors import SearchError, option
from hsdag.base.files import MODEL_SUFFIXES
from hsdag.base.host import command_line
from hsdag.ir.placement.placement import Placement

if TYPE_CHECKING:
    from hsdag.commands.place.result import PlaceResult


def refuse_model(source: str | Path) -> None:
    """Raise SearchError if the file is a model and not a placement."""
    if Path(source).suffix in MODEL_SUFFIXES and Path(source).is_file():
        raise SearchError(
            f"{source} is a model, and a placement file is expected, or a run folder; this writes one: "
            + command_line(["hsdag", "place", str(source)])
        )


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

    found = RunFolder.load(source).placement
    if found is None:
        raise SearchError(
            f"the search in {source} has not ended: finish it with {option('resume')}, or name a placement file"
        )
    return found
