"""Learning curves of training, as points of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hsdag.drawing import CurvePoint
from hsdag.ir.errors import OptionError
from hsdag.methods.base import Placer
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.training import Progress


def curve_point(progress: Progress, unit: float = 1.0) -> CurvePoint:
    """An update as a point, its values divided by ``unit``."""
    mean, best, so_far = (value / unit for value in (progress.mean_value, progress.best_value, progress.best_so_far))
    return CurvePoint(progress.update, mean, best, so_far, progress.entropy)


def tell_updates(placer: Placer[Any], on_update: Callable[[CurvePoint], None]) -> None:
    """Have a placer tell of its updates. Raises OptionError for a method that does not learn."""
    if not isinstance(placer, LearnedPlacer):
        raise OptionError(f"method {placer.name!r} does not learn, so that it has no learning curve")
    placer.on_update = lambda progress: on_update(curve_point(progress))
