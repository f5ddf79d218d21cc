"""Result of ``hsdag place``: the Python object, which is also its JSON answer and ``result.json`` in a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import openvino as ov
from pydantic import Field, model_validator

from hsdag.commands.place.lines import Deployed, run_sentence, setting_sentence
from hsdag.commands.place.records import (
    CostsRecord,
    DeviceSettings,
    PlanRecord,
    Row,
    ScenarioRecord,
    Tally,
    Verdict,
)
from hsdag.commands.place.tables import compact_table, comparison_table
from hsdag.drawing import Displayable, html_summary, text_table
from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement.placement import Placement, Record
from hsdag.runtime.measuring.latency import LatencyComparison, Samples
from hsdag.runtime.objectives import find_objective
from hsdag.runtime.timeline import Timeline
from hsdag.search.driver import Member

RESULT_VERSION: Literal[2] = 2
"""Version of the format of results; no other is read."""

IN_FILE = {"samples", "costs", "timeline"}
"""Fields with thousands of figures, which only the run folder keeps and the JSON answer leaves out."""


class PlaceResult(Displayable, Record):
    """Result of a search for a placement; values are in ``unit``, that of the objective.

    Attributes:
        value: Median of the answer.
        placement_file: File that the placement was written to.
        rows: Candidates of the final comparison, the fastest first.
        failures: Why candidates are missing from the comparison, by name.
        no_single: Why no single device is in the comparison; empty if one is.
        turned_down: Why faster candidates are not the answer, by name.
        verdict: Verdict on the outputs of the answer.
        finalists: Plans of the search that were compared, by name.
        members: Contributions of the methods of a portfolio.
        settings: Settings of devices that were raced before the search.
        bound: Sentence on how much could still be gained.
        wanted: Sentence on what there was no time for, with ``wanted_budget_s`` as the budget that is enough.
        others: Share of the processors that other programs took during the comparison.
        kinds: Time of the best of each kind before the search, as a ratio to the fastest device.
        scenarios: Sizes of data that were timed, if shapes are dynamic.
        state_bytes_per_token: Bytes of state for each token of context, by device, for a language model.
        lines: The answer for people.
        weight_bytes: Bytes of weights and state of the answer, by device.
        environment: Versions and hardware.
        finished: End of the search in UTC (ISO 8601).
        samples: Value of every inference of the comparison, by candidate and round.
        costs: Costs as calibrated by measurements.
        timeline: Measured run of the answer, if there was time for one.
    """

    format: Literal["hsdag-result"] = "hsdag-result"
    version: Literal[2] = RESULT_VERSION
    sentence: str
    objective: str
    unit: str
    value: float
    placement: Placement
    placement_file: str | None = None
    rows: tuple[Row, ...]
    failures: dict[str, str] = Field(default_factory=dict)
    no_single: str = ""
    turned_down: dict[str, str] = Field(default_factory=dict)
    verdict: Verdict
    finalists: dict[str, PlanRecord] = Field(default_factory=dict)
    tally: Tally = Tally()
    members: tuple[Member, ...] = ()
    settings: tuple[DeviceSettings, ...] = ()
    search_s: float = 0.0
    budget_s: float
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    bound: str = ""
    wanted: str = ""
    wanted_budget_s: float | None = None
    others: float = 0.0
    kinds: dict[str, float] = Field(default_factory=dict)
    scenarios: tuple[ScenarioRecord, ...] = ()
    state_bytes_per_token: dict[str, float] = Field(default_factory=dict)
    lines: tuple[str, ...] = ()
    weight_bytes: dict[str, float] = Field(default_factory=dict)
    run_folder: Path | None = None
    model_path: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    finished: str
    samples: dict[str, list[list[float]]] = Field(default_factory=dict)
    costs: CostsRecord | None = None
    timeline: Timeline | None = None

    @model_validator(mode="after")
    def _has_one_answer(self) -> PlaceResult:
        if sum(row.is_answer for row in self.rows) != 1:
            raise ValueError("one of the 'rows' has to be the answer")
        return self

    @property
    def affinity(self) -> dict[str, str]:
        """Return the device of each op in the placement, by the op's name."""
        return self.placement.affinity

    @property
    def devices(self) -> list[DeviceSpec]:
        """Return the devices of the placement."""
        return self.placement.devices

    @property
    def used_devices(self) -> tuple[str, ...]:
        """Return the names of the devices that hold at least one op of the placement."""
        return self.placement.used_devices

    def save(self, path: str | Path) -> None:
        """Write the placement to a file. Raises OutputError."""
        self.placement.save(path)

    def apply(self, model: ov.Model) -> ov.Model:
        """Set the affinity of every op of ``model``, and return a copy prepared for HETERO, as ``Placement.apply``."""
        return self.placement.apply(model)

    def compile(self, core: Any, model: ov.Model, properties: Mapping[str, Any] | None = None) -> Any:
        """Compile ``model`` with the placement, for HETERO or one device, as ``Placement.compile``."""
        return self.placement.compile(core, model, properties)

    @property
    def answer(self) -> Row:
        """Return the row of the candidate that is the answer."""
        return next(row for row in self.rows if row.is_answer)

    @property
    def comparison(self) -> LatencyComparison:
        """Return the final comparison of the candidates that ran."""
        samples = {name: Samples(tuple(map(tuple, rounds))) for name, rounds in self.samples.items()}
        return LatencyComparison(samples, {})

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and cells of the comparison, the fastest candidate first."""
        return comparison_table(self.rows, find_objective(self.objective))

    @property
    def versus(self) -> str | None:
        """Return the best single device; None if no single device runs the model."""
        return None if self.placement.speedup is None else self.placement.speedup.versus

    @property
    def run(self) -> str:
        """Return a sentence on what to run, its time, and how much faster that is than the best single device."""
        objective = find_objective(self.objective)
        return run_sentence(self._deployed, objective, self.versus, self.others, self.scenarios)

    @property
    def setting(self) -> str:
        """Return a sentence with the line of Python that compiles the answer; empty if there is none."""
        return setting_sentence(self._deployed, self.model_path, self.placement_file)

    @property
    def _deployed(self) -> Deployed:
        return Deployed(self.answer, self.placement, self.settings)

    @property
    def summary(self) -> tuple[str, ...]:
        """Return sentences on doubts of outputs, what to run, its gain, warnings, and what could still be gained."""
        warnings = [f"Warning: {warning}." for warning in self.warnings]
        objection = self.verdict.reason
        doubts = [] if objection is None else [each for each in warnings if each.endswith(f"{objection}.")]
        sentences = (*doubts, self.run, self.sentence, *warnings, self.bound, self.wanted)
        return tuple(filter(None, dict.fromkeys(sentences)))

    @property
    def said(self) -> tuple[str, ...]:
        """Return the answer in lines, with the short table below the line on what to run."""
        lines = self.lines or self.summary
        after = next((i for i, line in enumerate(lines, start=1) if line.startswith("Run ")), 0)
        table = compact_table(self.rows, self.versus, find_objective(self.objective), self.others, self.scenarios)
        return (*lines[:after], *text_table(*table), *lines[after:])

    def _repr_html_(self) -> str:
        chosen = next(i for i, row in enumerate(self.rows) if row.is_answer)
        return html_summary("\n".join(self.lines or self.summary), *self.table(), chosen)
