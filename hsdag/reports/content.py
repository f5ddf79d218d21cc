"""ReportContent: all that a report shows, as values. Legend: N ops, D devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hsdag.ir.graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.reports.explanation import Explanation
from hsdag.reports.layers import LayeredDrawing, draw_layers
from hsdag.runtime.timeline.timeline import Timeline


@dataclass(frozen=True)
class Advice:
    """What to do next, in a sentence, with the command or code that does it."""

    text: str
    code: str | None = None


@dataclass(frozen=True)
class Compared:
    """A measured candidate; ``low`` and ``high`` bound the ratio at 95%, and are None where too few rounds were run."""

    name: str
    median: float
    p95: float
    runs: int
    ratio: float
    low: float | None
    high: float | None
    submodels: int
    ops: Mapping[str, int]
    is_answer: bool


@dataclass(frozen=True)
class Trial:
    """A placement that the search measured, or tried to; ``value`` is None where it failed."""

    elapsed_s: float
    value: float | None
    failure: str | None = None


@dataclass(frozen=True)
class Turn:
    """What a method of the portfolio did between two seconds of the search, in simulated values."""

    method: str
    began_s: float
    ended_s: float
    before: float | None
    after: float | None
    failure: str | None = None

    @property
    def has_gained(self) -> bool:
        """Whether it left a better plan than it found."""
        return self.after is not None and (self.before is None or self.after < self.before)


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A model's ops, what each takes on every device, and where it is placed.

    ``device`` is -1 for all ops where there is no placement. ``group`` numbers what ``group_kind`` names.
    """

    graph: ComputationGraph
    devices: tuple[str, ...]
    device: IntArray  # [N]
    group: IntArray  # [N]
    group_kind: str
    time_s: FloatArray  # [N, D], NaN where it is not known

    @cached_property
    def drawing(self) -> LayeredDrawing:
        """Where ops and edges lie."""
        return draw_layers(self.graph)

    @cached_property
    def cost_s(self) -> FloatArray:
        """[N] what each op takes where it is, or at best where it is nowhere; 0 where that is not known."""
        known = np.nan_to_num(self.time_s)
        placed = known[np.arange(len(known)), np.maximum(self.device, 0)]
        return np.where(self.device >= 0, placed, known.min(axis=1, initial=np.inf) if known.size else 0.0)

    @property
    def is_profiled(self) -> bool:
        """Whether any time is known."""
        return bool(np.isfinite(self.time_s).any())

    @property
    def crosses(self) -> BoolArray:
        """[E] edges of the drawing on which data go from device to device."""
        ends = self.device[self.drawing.edge]
        found: BoolArray = (ends[:, 0] != ends[:, 1]) & ~self.drawing.is_known[self.drawing.edge[:, 0]]
        return found

    def name_of(self, device: int) -> str:
        """A device's name."""
        return self.devices[device] if device >= 0 else "not placed"


@dataclass(frozen=True, eq=False)
class ReportContent:
    """What a run has to tell; whatever it has not come to yet is empty or None."""

    name: str
    sentence: str
    subtitle: str = ""
    advice: tuple[Advice, ...] = ()
    placed: PlacedGraph | None = None
    compared: tuple[Compared, ...] = ()
    versus: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)  # why candidates are missing from the comparison
    value_name: str = "latency"
    unit: str = "ms"  # of all values of the comparison and the search
    factor: float = 1e3  # from the objective's own unit to it
    trials: tuple[Trial, ...] = ()
    turns: tuple[Turn, ...] = ()
    num_simulated: int = 0  # as far as that is known: a search tells at its end
    turned_down: Mapping[str, str] = field(default_factory=dict)  # why faster candidates are not the answer
    why: str = ""  # the answer won
    timelines: tuple[Timeline, ...] = ()  # simulated before measured
    explanation: Explanation | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def answer(self) -> Compared | None:
        """The candidate to deploy."""
        return next((each for each in self.compared if each.is_answer), None)

    @property
    def failures(self) -> dict[str, int]:
        """How many trials failed, by reason, the most frequent first."""
        reasons = [trial.failure for trial in self.trials if trial.failure is not None]
        return {reason: reasons.count(reason) for reason in sorted(set(reasons), key=reasons.count, reverse=True)}


def best_so_far(trials: Sequence[Trial]) -> tuple[list[float], list[float]]:
    """When the best measured value changed, in seconds, and what it was from then on, in ms."""
    when_s: list[float] = []
    best: list[float] = []
    for trial in trials:
        if trial.value is not None and (not best or trial.value < best[-1]):
            when_s.append(trial.elapsed_s)
            best.append(trial.value)
    return when_s, best
