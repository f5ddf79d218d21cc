"""Result of ``hsdag place``: the Python object, which is also its JSON answer and ``result.json`` in a run folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from hsdag.base.errors import FileFormatError
from hsdag.base.host import command_line
from hsdag.drawing import Displayable, html_summary, in_bytes, shortened, text_table
from hsdag.ir.device import ADDED_DEFAULTS, DeviceSpec
from hsdag.ir.graph.scenario import Scenario, context_of, token_words
from hsdag.ir.placement.placement import Placement, Record, ReferenceName, Words
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.machine.devices import DEFAULT
from hsdag.runtime.machine.settings import in_benchmark_app
from hsdag.runtime.machine.usable import BUSY
from hsdag.runtime.measuring.latency import Comparison, Ratio, Samples
from hsdag.runtime.measuring.profile import Figure, Table, figures, numbers
from hsdag.runtime.measuring.settings import named
from hsdag.runtime.objectives import LATENCY, Objective, find_objective
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import CostSource
from hsdag.runtime.timeline import Timeline
from hsdag.search.driver import Member
from hsdag.search.evaluators.recording import Event

if TYPE_CHECKING:
    import openvino as ov

RESULT_VERSION: Literal[2] = 2

SHOWN_REASONS = 3
"""Largest number of different reasons that a count of failures names; the run folder has all."""

LONGEST_REASON = 160
"""Largest number of characters of a reason; longer ones are shortened."""

IN_FILE = {"samples", "costs", "timeline"}
"""Fields with thousands of figures, which only the run folder keeps and the JSON answer leaves out."""

RUNNERS = {"hetero": "by HETERO", "work-conserving": "by hsdag's executor", "cuda": "by the torch engine"}
"""Words for each executor."""

OF_HETERO = {"time_s": (), "launch_s": (), "link_latency_s": (), "link_bandwidth_bytes_per_s": (np.inf,)}
"""Fields of HETERO's costs, with the value of a missing figure if that is not NaN."""

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
"""Characters for devices in a placement with one character per unit; for more devices it is a list of numbers."""


WIDE = 1.25
"""Ratio of an interval's ends above which, while other programs run, these make the result uncertain."""

CLOSE = 1.05
"""Ratio of an interval's ends below which an interval around 1 means that both are equally fast."""

MOST_ROWS = 6
"""Largest number of rows in the short table; the answer, the best device and defaults are always in it."""

MORE_CONTEXT = (4096, 32768)
"""Lengths of context in tokens for which memory is shown, if they are longer than the scenarios'."""

_NUMBERED = re.compile(r" \d+$")


class PlanRecord(Record):
    """Plan: the device of every placement unit, and its rank if the plan has an order."""

    placement: str | list[int]
    order: list[int] | None = None

    @staticmethod
    def of(plan: Plan, num_devices: int) -> PlanRecord:
        """Return the record of a plan; with few devices the placement is a text, one character per unit."""
        devices: list[int] = plan.placement.tolist()
        short = "".join(_ALPHABET[d] for d in devices) if num_devices <= len(_ALPHABET) else devices
        return PlanRecord(placement=short, order=None if plan.priority is None else plan.priority.tolist())

    def plan(self, num_units: int, num_devices: int, where: str) -> Plan:
        """Return the plan. Raises FileFormatError, which says ``where`` the record is, if it does not fit the model."""
        written, order = self.placement, self.order
        devices = [_ALPHABET.find(c) for c in written] if isinstance(written, str) else written
        fits = len(devices) == num_units and 0 <= min(devices) <= max(devices) < num_devices
        if not fits or (order is not None and len(order) != len(devices)):
            raise FileFormatError(f"{where}: the placement does not fit the model")
        return Plan(np.asarray(devices), None if order is None else np.asarray(order))


class CostsRecord(Record):
    """Costs as calibrated by measurements: all figures by op and link for HETERO, otherwise ``parameters``."""

    time_s: Table | None = None
    launch_s: list[Figure] | None = None
    link_latency_s: Table | None = None
    link_bandwidth_bytes_per_s: Table | None = None
    parameters: list[float] | None = None

    @staticmethod
    def of(costs: PlacementCosts | None) -> CostsRecord | None:
        """Return the record of calibrated costs; None if the executor's costs are not calibrated."""
        if isinstance(costs, HeteroCosts):
            return CostsRecord(**{name: figures(getattr(costs.costs, name)) for name in OF_HETERO})
        return CostsRecord(parameters=costs.parameters.tolist()) if isinstance(costs, WorkConservingCosts) else None

    def applied(self, costs: PlacementCosts) -> PlacementCosts:
        """Return the profile's costs with the figures of this record. Raises ValueError if these do not fit."""
        if isinstance(costs, HeteroCosts) and self.time_s is not None:
            known: dict[str, Any] = {name: numbers(getattr(self, name), *ends) for name, ends in OF_HETERO.items()}
            return HeteroCosts(costs.collector, replace(costs.costs, **known, source=CostSource.CALIBRATED))
        if isinstance(costs, WorkConservingCosts) and self.parameters is not None:
            if len(self.parameters) != len(costs.parameters):
                raise ValueError("the costs are for other devices")
            return WorkConservingCosts(costs.table, np.array(self.parameters), CostSource.CALIBRATED, costs.slowdown)
        raise ValueError("the costs are for another executor")


class Row(Record):
    """Measured candidate.

    Attributes:
        median: Median, in the objective's unit; as is ``p95``.
        runs: Number of inferences.
        ratio: How many times faster, or better, it is than the best single device.
        ci95: 95% interval of the ratio, without ends if too few ``rounds`` were run.
        ops: Number of ops by device; empty if OpenVINO does not tell.
        scenario_medians_s: Median of each scenario, if the objective is latency.
    """

    name: str
    median: float
    p95: float
    runs: int
    ratio: float
    ci95: tuple[float | None, float | None]
    rounds: int
    submodels: int
    ops: dict[str, int]
    is_answer: bool
    scenario_medians_s: tuple[float, ...] = ()

    @property
    def over(self) -> Ratio:
        """Ratio to the best single device, with its interval."""
        low, high = self.ci95
        return Ratio(self.ratio, low or 0.0, np.inf if high is None else high, self.rounds)

    @property
    def interval_text(self) -> str:
        """Interval as in tables, or words that there were too few rounds."""
        return self.over.interval_text


class ScenarioRecord(Record):
    """Shapes of typical data, their weight, and the ``--tokens`` that they stand for."""

    data_shape: str
    tokens: str | None
    weight: float

    @staticmethod
    def of(scenario: Scenario) -> ScenarioRecord:
        """Return the record of a scenario."""
        return ScenarioRecord(data_shape=scenario.text, tokens=scenario.known_tokens, weight=scenario.weight)


class Tally(Record):
    """Number of placements that a search tried to run and that it simulated, and of failures by reason."""

    tried: int = 0
    failures: dict[Words, int] = Field(default_factory=dict)
    simulated: int = 0

    @staticmethod
    def of(events: Sequence[Event], simulated: int = 0) -> Tally:
        """Count a search's events."""
        failed = Counter(e.score.failure for e in events if e.score.failure is not None)
        return Tally(tried=len(events), failures=dict(failed.most_common()), simulated=simulated)

    @property
    def num_failed(self) -> int:
        """Number of placements that were tried and failed."""
        return sum(self.failures.values())

    @property
    def words(self) -> str:
        """Counts in words; failed placements do not count as measured."""
        simulated = f", {self.simulated:,} simulated" if self.simulated else ""
        if not self.failures:
            return f"{placements_were(self.tried)} measured{simulated}"
        known = list(dict.fromkeys(shortened(reason, LONGEST_REASON) for reason in self.failures))
        reasons = "; ".join([*known[:SHOWN_REASONS], *["..."] * (len(known) > SHOWN_REASONS)])
        measured = self.tried - self.num_failed
        left = f"{measured} measured" if measured else "none was measured"
        return f"{placements_were(self.tried)} tried; {self.num_failed} failed ({reasons}), {left}{simulated}"


@dataclass(frozen=True)
class Verdict:
    """Verdict on the outputs of a candidate.

    Attributes:
        versus: Reference that they were compared with.
        tolerance: Largest accepted relative difference.
        difference: Difference by measure, None if it is not finite; None as a whole if they were not compared.
        reason: Why the candidate is rejected; None if it is not.
    """

    versus: ReferenceName
    tolerance: float
    difference: Mapping[str, float | None] | None = None
    reason: str | None = None
    ran: bool = True  # whether the candidate ran at all


class TriedSetting(Record):
    """Setting that was raced, with how many times faster it was than the best one before, or why it failed."""

    setting: dict[str, str]
    ratio: float | None = None
    ci95: tuple[float | None, float | None] = (None, None)
    failure: str | None = None


class DeviceSettings(Record):
    """Settings of a device, found by racing; a setting has values by property.

    Attributes:
        setting: Values that were chosen in addition to the user's.
        default: Values that the plugin uses without them.
        words: The setting in words.
        requests: Number of inferences in flight, for throughput.
        ratio: How many times faster the device is with the setting, in the final comparison.
        apart: Relative differences of outputs from the reference's before and after, if the setting changes them.
        is_decided: Whether the race left no doubt.
    """

    device: str
    setting: dict[str, str] = Field(default_factory=dict)
    default: dict[str, str] = Field(default_factory=dict)
    words: str = ""
    requests: int | None = None
    ratio: float | None = None
    ci95: tuple[float | None, float | None] = (None, None)
    apart: tuple[float, float] | None = None
    tried: tuple[TriedSetting, ...] = ()
    is_decided: bool = True

    @property
    def gain(self) -> str:
        """Gain of the setting, as the end of a sentence that names the device; empty if it is not known."""
        said = [] if self.ratio is None else [f"{100 * (self.ratio - 1):.0f}% faster than as OpenVINO sets it up"]
        if self.apart is not None:
            before, after = self.apart
            said.append(f"{'nearer to' if after < before else 'farther from'} the model's own numbers")
        return ", and ".join(said)


def _alike(settings: Sequence[DeviceSettings], devices: Sequence[str]) -> list[str]:
    """Return the setting in words if it is the same for all of the devices, else nothing."""
    words = {each.device: each.words for each in settings if each.device in devices and each.setting}
    return [*set(words.values())] if len(words) == len(devices) and len(set(words.values())) == 1 else []


def settings_table(settings: Sequence[DeviceSettings]) -> tuple[list[str], list[list[str]]]:
    """Return columns and cells of the raced settings: the ratio to the best one before, or the failure."""
    cells = []
    for device, tried in ((each.device, tried) for each in settings for tried in each.tried):
        low, high = tried.ci95
        interval = "too few rounds" if low is None or high is None else f"{low:.3f}..{high:.3f}"
        how = ["-", tried.failure or ""] if tried.ratio is None else [f"{tried.ratio:.3f}", interval]
        cells.append([device, named(tried.setting), *how])
    return ["device", "setting", "x", "95% interval"], cells


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
    sentence: Words
    objective: str
    unit: str
    value: float
    placement: Placement
    placement_file: str | None = None
    rows: tuple[Row, ...]
    failures: dict[str, Words] = Field(default_factory=dict)
    no_single: Words = ""
    turned_down: dict[str, Words] = Field(default_factory=dict)
    verdict: Verdict
    finalists: dict[str, PlanRecord] = Field(default_factory=dict)
    tally: Tally = Tally()
    members: tuple[Member, ...] = ()
    settings: tuple[DeviceSettings, ...] = ()
    search_s: float = 0.0
    budget_s: float
    interrupted: bool = False
    warnings: tuple[Words, ...] = ()
    bound: str = ""
    wanted: Words = ""
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
        """Device of each op in the placement, by the op's name."""
        return self.placement.affinity

    @property
    def devices(self) -> list[DeviceSpec]:
        """Devices of the placement."""
        return self.placement.devices

    @property
    def used_devices(self) -> tuple[str, ...]:
        """Names of the devices that hold at least one op of the placement."""
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
        """Row of the candidate that is the answer."""
        return next(row for row in self.rows if row.is_answer)

    @property
    def comparison(self) -> Comparison:
        """Final comparison of the candidates that ran."""
        rounds = {name: tuple(map(tuple, each)) for name, each in self.samples.items()}
        return Comparison({name: Samples(each) for name, each in rounds.items()}, {})

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and cells of the comparison, the fastest candidate first."""
        objective = find_objective(self.objective)
        unit = objective.shown_unit
        columns = ["candidate", f"median {unit}", f"p95 {unit}", "x best device", "95% interval", "submodels"]
        cells = [
            [
                f"{row.name} *" if row.is_answer else row.name,
                objective.figure(row.median),
                objective.figure(row.p95),
                f"{row.ratio:.3f}",
                row.interval_text,
                str(row.submodels),
                " ".join(f"{device}:{count}" for device, count in row.ops.items() if count) or "-",
            ]
            for row in self.rows
        ]
        return [*columns, "ops per device"], cells

    def with_lines(self, following: str | None = None) -> PlaceResult:
        """Return the result with ``lines``: the summary, the files, and the command to run next (``following``)."""
        written = f"The placement is in {self.placement_file}" if self.placement_file else ""
        if self.run_folder is not None:
            written += f"{'; the search' if written else 'The search is'} in {self.run_folder}"
        following = following or self.next_command
        objection = self.verdict.reason
        doubts = [f"Warning: {each}." for each in self.warnings if objection is not None and each.endswith(objection)]
        begun = self.model_copy(update={"lines": (*doubts, self.run, self.sentence)})
        last = [self.memory, self.setting, written and f"{written}.", following and f"Next: {following}"]
        return self.model_copy(update={"lines": tuple(filter(None, [*begun.summary, *last]))})

    @property
    def run(self) -> str:
        """Sentence on what to run, the time it takes, and how much faster that is than the best single device."""
        name, row = self.answer.name, self.answer
        over = [device for device, count in row.ops.items() if count]
        if self.placement.shards:
            what = f"{name}, {len(self.placement.shards)} regions divided over {' and '.join(over)}"
        elif len(over) > 1:
            ops = " and ".join(f"{row.ops[device]} ops on {device}" for device in over)
            what = f"{name}, {ops}, {RUNNERS[self.placement.executor]}"
        else:
            what = f"the whole model on {self._described(self._alone or name)}"
        if self._alone is None:
            what += "".join(f", {words}" for words in _alike(self.settings, over))
        gain = "".join(f", {each.gain}" for each in self._chosen if each.gain)
        is_faster = row.over.is_faster and not is_disturbed(row.over, self.others)
        if self.versus is not None and name != self.versus and is_faster:
            gain = f", {row.ratio:.2f} times as good as the best single device, {self.versus}"
            gain = gain.replace("good", "fast") if self.unit == "s" else gain
        return f"Run {what}: {self._figures(row)}{gain}."

    @property
    def versus(self) -> str | None:
        """Best single device; None if no single device runs the model."""
        return None if self.placement.speedup is None else self.placement.speedup.versus

    @property
    def setting(self) -> str:
        """Sentence with the line of Python that compiles the answer; empty if there is none."""
        model = self.model_path or "model.xml"
        spec = self._device(self._alone or self.answer.name)
        if spec is not None and self.placement.executor != "cuda":
            how = f", {spec.properties}" if spec.properties else ""
            requests = next((each.requests for each in self.settings if each.device == spec.name), None)
            busy = "" if requests is None else f", with {requests} requests in flight"
            other = f"; elsewhere: {in_benchmark_app(spec.plugin, spec.properties, requests)}" if self._chosen else ""
            return f"To use it in Python: ov.Core().compile_model({model!r}, {spec.plugin!r}{how}){busy}{other}"
        if self.placement_file is None or self.placement.executor == "cuda":
            return ""
        return f"To use it in Python: hsdag.compile_model({model!r}, {self.placement_file!r})"

    @property
    def _alone(self) -> str | None:
        """Device that runs the whole model, by its name without settings' suffix; None for a split."""
        used = self.placement.used_devices
        return used[0] if len(used) == 1 and not self.placement.shards and not self.placement.copies else None

    @property
    def _chosen(self) -> list[DeviceSettings]:
        """Settings of the device that runs the whole model, if some were chosen."""
        return [each for each in self.settings if each.device == self._alone and each.setting]

    @property
    def memory(self) -> str:
        """Sentence on the memory of each device for a language model, by context; empty for other models."""
        contexts = sorted({context_of(each.tokens) for each in self.scenarios if each.tokens})
        if not self.state_bytes_per_token or not self.weight_bytes or not contexts:
            return ""
        said = []
        for name, each in self.weight_bytes.items():
            if not each:
                continue
            token = self.state_bytes_per_token.get(name, 0.0)
            fixed = each - token * contexts[-1]
            lengths = [contexts[-1], *(n for n in MORE_CONTEXT if n > contexts[-1])]
            at = ", ".join(f"{in_bytes(fixed + token * n)} at {n}" for n in lengths)
            said.append(f"{name} {in_bytes(fixed)} and {in_bytes(token)} a token ({at})")
        return f"Memory for weights and state, by tokens of context: {'; '.join(said)}."

    def _device(self, name: str) -> DeviceSpec | None:
        return next((spec for spec in self.placement.devices if spec.name == name), None)

    def _described(self, name: str) -> str:
        """Return a device's name, with its plugin and properties if OpenVINO does not know the name."""
        spec = self._device(name)
        if self._chosen and name == self._alone:
            return f"{name} {self._chosen[0].words}"
        if spec is None or not (spec.properties or spec.is_added):
            return name
        implied = ADDED_DEFAULTS.get(spec.plugin, {}).items()
        said = [f"{key}={value}" for key, value in sorted(spec.properties.items() - implied)]
        return f"{name} ({spec.plugin}{' with ' if said else ''}{', '.join(said)})"

    def _figures(self, row: Row) -> str:
        objective = find_objective(self.objective)
        if row.scenario_medians_s and all(each.tokens for each in self.scenarios):
            return ", ".join(map(_token_figures, self.scenarios, row.scenario_medians_s))
        rate = f", {1 / row.median:.4g} inferences a second" if objective is LATENCY else ""
        return f"{objective.text(row.median)}{rate}"

    @property
    def summary(self) -> tuple[str, ...]:
        """Sentences on doubts of outputs, what to run, its gain, warnings, and what could still be gained."""
        at = self.lines.index(self.sentence) if self.sentence in self.lines else 1
        warnings = [f"Warning: {warning}." for warning in self.warnings]
        said = (*self.lines[:at], self.sentence, *warnings, self.bound, self.wanted)
        return tuple(filter(None, dict.fromkeys(said)))

    def compact_table(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and cells of the few rows of the comparison that matter most."""
        objective = find_objective(self.objective)
        return compact_table(self.rows, self.versus, objective, self.others, self.scenarios)

    @property
    def next_command(self) -> str | None:
        """Command to run next: ``hsdag bench`` for a split, or else ``hsdag explain``; None if neither can be run."""
        if len(self.placement.used_devices) > 1 and self.model_path is not None and self.placement_file is not None:
            return command_line(["hsdag", "bench", self.model_path, "--placement", self.placement_file])
        return None if self.run_folder is None else command_line(["hsdag", "explain", str(self.run_folder)])

    @property
    def said(self) -> tuple[str, ...]:
        """Answer in lines, with the short table below the line on what to run."""
        lines = self.lines or self.summary
        after = next((i for i, line in enumerate(lines, start=1) if line.startswith("Run ")), 0)
        return (*lines[:after], *text_table(*self.compact_table()), *lines[after:])

    def _repr_html_(self) -> str:
        chosen = next(i for i, row in enumerate(self.rows) if row.is_answer)
        return html_summary("\n".join(self.lines or self.summary), *self.table(), chosen)


def is_disturbed(ratio: Ratio, others: float) -> bool:
    """Return whether a ratio decides nothing, as other programs took BUSY or more and its interval is WIDE."""
    return others >= BUSY and (not ratio.is_known or ratio.high > WIDE * ratio.low)


def compact_table(
    rows: Sequence[Row],
    versus: str | None,
    objective: Objective,
    others: float = 0.0,
    scenarios: Sequence[ScenarioRecord] = (),
) -> tuple[list[str], list[list[str]]]:
    """Return columns and cells of the rows that matter most: the answer, devices, and the best of each other kind.

    Args:
        rows: Rows, the fastest first.
        versus: Best single device, which ratios are over.
        others: Share of the processors that other programs took.
        scenarios: Scenarios; for a language model the table has the time of each.
    """
    seen = set[str]()
    shown: list[Row] = []
    for row in rows:
        kind = _NUMBERED.sub("", row.name).partition(":")[0]
        is_wanted = row.is_answer or row.name == versus or row.name.endswith(DEFAULT)
        if is_wanted or (kind not in seen and len(shown) < MOST_ROWS):
            shown.append(row)
            seen.add(kind)
    is_latency = objective is LATENCY
    figures = {r.name: [objective.figure(r.median), *([f"{1 / r.median:.4g}"] * is_latency)] for r in shown}
    titles = ["ms", "inferences/s"] if is_latency else [objective.shown_unit or "value"]
    timed = scenario_table(scenarios, {row.name: row.scenario_medians_s for row in shown})
    if len(timed[1]) == len(shown) > 0 and all(each.tokens for each in scenarios):
        titles, figures = timed[0][1:], {cells[0]: cells[1:] for cells in timed[1]}
    cells = [
        [f"{row.name} *" if row.is_answer else row.name, *figures[row.name], _times_words(row, versus, others)]
        for row in shown
    ]
    return ["what", *titles, "times the best device" if versus else "times the answer"], cells


def _token_figures(scenario: ScenarioRecord, seconds: float) -> str:
    """Return the time of a scenario of a language model, with tokens a second if it is one generated token."""
    words, count = token_words(scenario.tokens or "")
    rate = f" ({1 / seconds:.4g} tokens a second)" if count == 1 else ""
    return f"{words} in {1e3 * seconds:.4g} ms{rate}"


def _times_words(row: Row, versus: str | None, others: float) -> str:
    """Return how many times as fast a row is, with its interval, and words if that decides nothing."""
    if row.name == versus or (versus is None and row.is_answer):
        return "1"
    ratio = row.over
    if not ratio.is_known:
        return f"{row.ratio:.2f}, not decided: {row.rounds} round{'s' * (row.rounds > 1)}"
    is_open = ratio.low <= 1.0 <= ratio.high and ratio.high > CLOSE * ratio.low
    said = ", not decided" if is_open or is_disturbed(ratio, others) else ""
    return f"{row.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f}){said}"


def scenario_table(
    scenarios: Sequence[ScenarioRecord], medians_s: Mapping[str, Sequence[float | None]]
) -> tuple[list[str], list[list[str]]]:
    """Return columns and cells of the milliseconds for each scenario, with one row per candidate.

    For a language model these are the time to the first token, and that of each next one with tokens a second. Empty
    for a single scenario of other data.
    """
    if len(scenarios) < 2 and not any(each.tokens for each in scenarios):
        return [], []
    columns = ["by scenario"]
    for each in scenarios:
        words, count = token_words(each.tokens) if each.tokens else (each.data_shape, 0)
        columns += [f"{words}, ms", *["tokens/s"] * (count == 1)]
    cells = []
    for name, taken_s in medians_s.items():
        row = [name]
        for each, seconds in zip(scenarios, taken_s, strict=False):
            row.append("-" if seconds is None else f"{1e3 * seconds:.4g}")
            if each.tokens and token_words(each.tokens)[1] == 1:
                row.append("-" if seconds is None else f"{1 / seconds:.4g}")
        cells += [row] if len(row) == len(columns) else []
    return columns, cells


def placements_were(count: int) -> str:
    """Return a count of placements as the beginning of a sentence."""
    return "1 placement was" if count == 1 else f"{count} placements were"
