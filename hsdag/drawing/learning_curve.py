"""Learning curves: what a policy draws as it learns, as a picture or for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hsdag.drawing.gantt import COLOURS
from hsdag.drawing.picture import is_installed, write_picture
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_IN = (9.0, 6.0)
SMOOTHED = 50
"""Parts of the curve over which single updates are averaged."""


@dataclass(frozen=True)
class CurvePoint:
    """An update: the mean and the best value of the plans that were drawn, the best value so far, and the mean entropy
    of a decision in nats."""

    update: int
    mean: float
    best: float
    best_so_far: float
    entropy: float


def write_curve(points: Sequence[CurvePoint], title: str, unit: str, path: str | Path) -> None:
    """Draw values in ``unit`` above entropies, over updates, of which there is at least one.

    Raises OptionError and OutputError as ``write_picture`` does.
    """

    def draw(figure: Figure) -> None:
        values, entropies = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        update = np.array([point.update for point in points])
        _draw_line(values, update, [point.mean for point in points], "mean of an update", COLOURS[1])
        _draw_line(values, update, [point.best for point in points], "best of an update", COLOURS[0])
        values.plot(update, _finite([point.best_so_far for point in points]), color="black", label="best so far")
        _draw_line(entropies, update, [point.entropy for point in points], "entropy", COLOURS[2])
        values.set_title(title.replace("$", r"\$"), loc="left")
        values.set_ylabel(unit)
        values.legend(frameon=False, fontsize=8)
        entropies.set_ylabel("entropy of a decision, nats")
        entropies.set_xlabel("update")
        for axes in (values, entropies):
            axes.grid(linewidth=0.4, alpha=0.6)
            axes.spines[["top", "right"]].set_visible(False)

    write_picture(path, SIZE_IN, draw)


def _draw_line(axes: Axes, update: np.ndarray, values: Sequence[float], label: str, colour: str) -> None:
    """Single updates pale, their running mean in full."""
    y, width = _finite(values), max(len(values) // SMOOTHED, 1)
    axes.plot(update, y, color=colour, linewidth=0.6, alpha=0.35)
    axes.plot(update, running_mean(y, width), color=colour, label=label)


def running_mean(values: FloatArray, width: int) -> FloatArray:
    """[P] mean of each value and of up to ``width`` - 1 before it, those that are not known left out."""
    known, window = np.isfinite(values), np.ones(width)
    total = np.convolve(np.where(known, values, 0.0), window)[: len(values)]
    count = np.convolve(known, window)[: len(values)]
    return np.where(count > 0.5, total / np.maximum(count, 1.0), np.nan)


def _finite(values: Sequence[float]) -> FloatArray:
    found = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)


class TensorBoard(AbstractContextManager["TensorBoard"]):
    """Writes points into a folder for TensorBoard; None writes nothing. Raises OptionError where that is missing."""

    def __init__(self, folder: Path | None) -> None:
        self._writer: Any = None
        if folder is not None:
            if not is_installed("tensorboard"):
                install = "pip install 'hsdag[tensorboard]'"
                raise OptionError(f"--tensorboard needs tensorboard, which is not installed; run: {install}")
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def note(self, point: CurvePoint) -> None:
        """Write what is known of a point."""
        for name in ("mean", "best", "best_so_far", "entropy") if self._writer is not None else ():
            value = getattr(point, name)
            if np.isfinite(value):
                self._writer.add_scalar(name, value, point.update)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
