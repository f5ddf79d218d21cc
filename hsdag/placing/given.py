"""The placement that a caller gives; one in memory or in a file loads no more than what runs it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.ir.errors import SearchError
from hsdag.ir.files import MODEL_SUFFIXES
from hsdag.ir.host import command_line
from hsdag.ir.placement.placement import Placement

if TYPE_CHECKING:
    from hsdag.placing.result import PlaceResult


def refuse_model(given: str | Path) -> None:
    """Raise SearchError where a model is named in place of its placement."""
    if Path(given).suffix in MODEL_SUFFIXES and Path(given).is_file():
        raise SearchError(
            f"{given} is a model, and a placement file is expected, or a run folder; this writes one: "
            + command_line(["hsdag", "place", str(given)])
        )


def placement_of(given: str | Path | Placement | PlaceResult) -> Placement:
    """A placement, that of a file, or the answer of a search by its result or run folder.

    Raises SearchError for a model, and for a folder that holds no search, or one that has not ended.
    """
    if isinstance(given, Placement):
        return given
    if not isinstance(given, str | Path):
        return given.placement
    refuse_model(given)
    if not Path(given).is_dir():
        return Placement.load(given)

    from hsdag.placing.run_folder import RunFolder

    found = RunFolder.load(given).placement
    if found is None:
        raise SearchError(f"the search in {given} has not ended: finish it with --resume, or name a placement file")
    return found
