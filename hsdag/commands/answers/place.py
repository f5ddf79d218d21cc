"""Of ``hsdag place``."""

from __future__ import annotations

from hsdag.search.kept_answer import Searched


class Placed(Searched):
    """The same with ``placement``, its file."""

    placement: str


Answer = Placed
