"""Pictures as files: PNG or SVG by matplotlib, which is an extra."""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.ir.errors import OptionError
from hsdag.ir.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
DPI = 130


def check_picture(path: Path) -> None:
    """Raise OptionError unless a picture of this name can be drawn here, before any work is done for it."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"{path} is not a picture format; name a file that ends in .png or .svg")
    if not is_installed("matplotlib"):
        raise OptionError("pictures need matplotlib, which is not installed; run: pip install 'hsdag[pictures]'")


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # so says a module that is barred
        return False


def write_picture(path: str | Path, size_in: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    """Have a figure of so many inches drawn, and write it atomically; the same drawing gives the same bytes.

    Raises OptionError as ``check_picture`` does, OutputError when the file cannot be written.
    """
    path = Path(path)
    check_picture(path)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    settings = {**mpl.rcParamsDefault, "svg.hashsalt": "hsdag", "path.simplify": False}
    with warnings.catch_warnings(), mpl.rc_context(settings):
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # is drawn as a box
        figure = Figure(figsize=size_in, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, content.getvalue())
