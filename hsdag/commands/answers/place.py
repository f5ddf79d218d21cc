"""Of ``hsdag place``."""

from hsdag.search.result import PlaceResult as Answer

__all__ = ["Answer"]
