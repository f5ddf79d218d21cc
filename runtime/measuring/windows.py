"""Windows: figures measured in short turns that are spread over a profile, and their agreement.

Any disturbance adds to a measurement, sometimes for seconds, and to two devices at once more than to one. So the
least figure of several windows counts, and only if others come near it. Legend: W windows, K figures, D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray
from hsdag.runtime.measuring.messages import Beside

AGREEING = 3
"""Number of windows that have to agree before a figure is believed."""

CHECKING = 2
"""Number of windows by which a cached figure is checked."""

DOUBT = 1.25
"""Factor beyond which slow-downs that should be about the same contradict each other."""


def least_of(windows: FloatArray) -> FloatArray:
    """Return the least figures [K] of windows [W, K], NaN where none has one."""
    least: FloatArray = np.fmin.reduce(windows, axis=0)
    return least


def agreed(windows: FloatArray, tolerance: float, floor: float = 0.0) -> BoolArray:
    """Return for each figure [K] whether AGREEING windows [W, K] come near the least one.

    Near is within a share of ``tolerance``, or within ``floor``. A figure that no window has counts as agreed.
    """
    near = windows <= np.maximum((1.0 + tolerance) * least_of(windows), least_of(windows) + floor)
    is_agreed: BoolArray = (near.sum(axis=0) >= AGREEING) | np.isnan(windows).all(axis=0)
    return is_agreed


def figures_of(window: Beside) -> FloatArray:
    """Return the seconds of a window as figures [D + D D + W]: alone, beside each other, and of whole devices."""
    return np.concatenate([window.alone_s, np.ravel(window.beside_s), window.whole_devices_s])


def factors_of(figures: FloatArray, num_devices: int) -> FloatArray:
    """Return [D, D] the times of each device beside each other one over those alone, at least 1."""
    alone_s, beside_s = figures[:num_devices], figures[num_devices : num_devices * (num_devices + 1)]
    factors: FloatArray = np.maximum(beside_s.reshape(num_devices, num_devices) / alone_s[:, None], 1.0)
    np.fill_diagonal(factors, np.nan)
    return factors


def are_apart(kept: FloatArray, seen: FloatArray, times: float, floor: float = 0.0) -> bool:
    """Return whether any two figures are more than ``times`` and ``floor`` apart; NaN contradicts nothing."""
    return bool(((kept > times * seen + floor) | (seen > times * kept + floor)).any())


def contradicted(factor: Mapping[str, FloatArray], alone_s: FloatArray, whole_s: float) -> bool:
    """Return whether slow-downs [D, D] by kind contradict each other, or the speed of a device made of all devices.

    A model is bound by arithmetic and by memory, so it is slowed down by no more than the small
    models that are bound by either. Devices side by side, with ``alone_s`` [D] each, run about as many inferences
    together as one device made of all of them, with ``whole_s``: NaN if there is none.
    """
    if (factor["model"] > DOUBT * np.fmax(factor["compute"], factor["memory"])).any():
        return True
    others = ~np.eye(len(alone_s), dtype=np.bool_)
    each_s = alone_s * factor["model"].prod(axis=1, where=others)
    return bool((1.0 / each_s).sum() * DOUBT * whole_s < 1.0)  # false where anything is unknown


@dataclass(eq=False)
class Series:
    """Figures that are measured window by window, and their check against cached ones, which may be wrong.

    ``measure`` returns the figures [K] of one window; ``what`` names them. ``tolerance`` and ``floor`` say when windows
    agree, ``contradicts`` whether the least figures contradict each other. ``derive`` makes what is cached from the
    least figures. ``cached`` is what was cached before, or None, and ``refutes(cached, derived)`` says whether the two
    contradict each other. ``keep`` caches what was derived or, for None, deletes what is cached.
    """

    what: str
    measure: Callable[[], FloatArray]
    tolerance: float
    refutes: Callable[[FloatArray, FloatArray], bool]
    floor: float = 0.0
    contradicts: Callable[[FloatArray], bool] = lambda _: False
    cached: FloatArray | None = None
    derive: Callable[[FloatArray], FloatArray] = lambda least: least
    keep: Callable[[FloatArray | None], None] = lambda _: None
    windows: list[FloatArray] = field(default_factory=list, init=False)

    @property
    def least(self) -> FloatArray:
        """Return the least figures [K]."""
        return least_of(np.array(self.windows))

    @property
    def is_confirmed(self) -> bool:
        """Return whether the first windows do not refute the cached figures; without time for any, nothing does."""
        first = self.windows[:CHECKING]
        if self.cached is None or not first:
            return self.cached is not None
        return not self.refutes(self.cached, self.derive(least_of(np.array(first))))

    @property
    def is_agreed(self) -> bool:
        """Return whether the windows agree, and nothing contradicts them."""
        agree = self.windows and agreed(np.array(self.windows), self.tolerance, self.floor).all()
        return bool(agree) and not self.contradicts(self.least)

    @property
    def is_settled(self) -> bool:
        """Return whether no more windows are needed."""
        return (len(self.windows) >= CHECKING and self.is_confirmed) or self.is_agreed

    @property
    def is_known(self) -> bool:
        """Return whether the figures can be believed."""
        return self.is_confirmed or self.is_agreed

    def result(self) -> FloatArray:
        """Return the cached figures if windows confirm them, else those of windows, which are cached if they agree."""
        if self.cached is not None and self.is_confirmed:
            return self.cached
        seen = self.derive(self.least)
        self.keep(seen if self.is_agreed else None)
        return seen


def settle(
    all_series: Sequence[Series], most: int, is_over: Callable[[], bool], say: Callable[[str], None] = lambda _: None
) -> None:
    """Measure windows of all series in turn until each is settled or has ``most``, or time is over; at least one each.

    ``say`` is told which cached figures are measured again.
    """
    for number in range(most):
        for series in [series for series in all_series if not series.is_settled]:
            if number and is_over():
                return
            if number == CHECKING and series.cached is not None:
                say(f"what was kept of {series.what} is not what is measured now; measuring it again")
            series.windows.append(series.measure())
