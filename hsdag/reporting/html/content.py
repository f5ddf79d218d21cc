"""What a report shows: the result of a search, its events, and what is drawn. Legend: N ops, D devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hsdag.drawing.layers import LayeredDrawing, draw_layers
from hsdag.explaining.explanation import Explanation
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.placing.result import Member, PlaceResult, Row, Tally
from hsdag.runtime.objectives import Objective
from hsdag.runtime.objectives.latency import LATENCY
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.scoring.recording import Event


@dataclass(frozen=True)
class Advice:
    """What to do next, in a sentence, with the command or code that does it."""

    text: str
    code: str | None = None


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
    objective: Objective = LATENCY
    subtitle: str = ""
    advice: tuple[Advice, ...] = ()
    placed: PlacedGraph | None = None
    result: PlaceResult | None = None
    events: Sequence[Event] = ()
    timelines: tuple[Timeline, ...] = ()  # simulated before measured
    explanation: Explanation | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The measured candidates, the fastest first."""
        return () if self.result is None else self.result.rows

    @property
    def members(self) -> tuple[Member, ...]:
        """The turns of the methods of a portfolio, in simulated values."""
        return () if self.result is None else self.result.members

    @property
    def tally(self) -> Tally:
        """What was tried; simulations are known when a search has ended."""
        return Tally.of(self.events, 0 if self.result is None else self.result.tally.simulated)

    @property
    def versus(self) -> str | None:
        """The best single device; None where none runs the model."""
        speedup = None if self.result is None else self.result.placement.speedup
        return None if speedup is None else speedup.versus

    def interval_of(self, row: Row) -> tuple[float, float] | None:
        """The 95% interval of a candidate's ratio to the best single device; None where it has none."""
        low, high = row.ci95
        return None if row.name == self.versus or low is None or high is None else (low, high)
