"""PlaceResult: the result of a search as values, as the rows of a table, and in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsdag.evaluators.recording import Event
from hsdag.ir.placement import Placement
from hsdag.placers.incumbent import Contribution
from hsdag.reports.html_table import html_summary
from hsdag.runtime.measuring.latency import MIN_ROUNDS_TO_CLAIM, Ratio
from hsdag.runtime.problems.objectives import Objective, find_objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.search.final import FinalResult
from hsdag.search.verifying import Verdict

NO_SINGLE = "No single device runs the whole model"

SHOWN_REASONS = 3
"""Number of reasons that a count of failures names; the run folder has all."""


@dataclass(frozen=True)
class Row:
    """One measured candidate: values for the objective, ratio to the best single device, submodels, ops per device."""

    name: str
    median: float
    p95: float
    runs: int
    ratio: Ratio
    submodels: int
    ops: Mapping[str, int]
    is_answer: bool


@dataclass(frozen=True)
class Tally:
    """How many placements a search ran, or tried to, and simulated; ``failures`` counts those that failed by reason."""

    tried: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    simulated: int = 0

    @staticmethod
    def of(events: Sequence[Event], simulated: int = 0) -> Tally:
        """Of a search's events."""
        failed = Counter(e.score.failure for e in events if e.score.failure is not None)
        return Tally(len(events), dict(failed.most_common()), simulated)

    @property
    def num_failed(self) -> int:
        """Placements that were tried and have no figure."""
        return sum(self.failures.values())

    @property
    def words(self) -> str:
        """The count in words; failed placements are not called measured."""
        simulated = f", {self.simulated} simulated" if self.simulated else ""
        if not self.failures:
            return f"{_placements(self.tried)} measured{simulated}"
        reasons = "; ".join([*list(self.failures)[:SHOWN_REASONS], *["..."] * (len(self.failures) > SHOWN_REASONS)])
        measured = self.tried - self.num_failed
        left = f"{measured} measured" if measured else "none was measured"
        return f"{_placements(self.tried)} tried; {self.num_failed} failed ({reasons}), {left}{simulated}"


@dataclass(frozen=True)
class PlaceResult:
    """A finished search, which can be used like its placement."""

    placement: Placement
    rows: tuple[Row, ...]
    failures: Mapping[str, str]  # why candidates are missing from the rows
    verdict: Verdict  # on the outputs
    sentence: str
    search_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    run_folder: Path | None = None
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    held_bytes: Mapping[str, float] = field(default_factory=dict)  # weights and state, by device
    contributions: tuple[Contribution, ...] = ()
    turned_down: Mapping[str, str] = field(default_factory=dict)  # why faster candidates are not the answer

    @property
    def objective(self) -> Objective:
        """What rows have values of."""
        return find_objective(self.placement.objective)

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the placement's: ``affinity``, ``save``, ``apply``, ``compile``, ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.placement, name)

    def _repr_html_(self) -> str:
        """The sentence and the comparison, as notebooks show it."""
        unit = self.objective.shown_unit
        columns = ["candidate", f"median {unit}", f"p95 {unit}", "x best device", "95% interval", "submodels"]
        cells = [
            [
                row.name,
                *(self.objective.figure(value) for value in (row.median, row.p95)),
                f"{row.ratio.value:.3f}",
                row.ratio.interval_text,
                str(row.submodels),
            ]
            for row in self.rows
        ]
        chosen = next((i for i, row in enumerate(self.rows) if row.is_answer), None)
        return html_summary(self.sentence, columns, cells, chosen)

    def document(self) -> dict[str, object]:
        """The JSON answer of ``hsdag place``, beside the placement file."""
        suffix = self.objective.suffix
        rows = [
            {
                "name": row.name,
                f"median_{suffix}": row.median,
                f"p95_{suffix}": row.p95,
                "runs": row.runs,
                "ratio_to_best_single": row.ratio.value,
                "ci95": row.ratio.interval,
                "rounds": row.ratio.num_rounds,
                "submodels": row.submodels,
                "ops": dict(row.ops),
                "answer": row.is_answer,
            }
            for row in self.rows
        ]
        return {
            "sentence": self.sentence,
            "objective": self.objective.name,
            "speedup": self.placement.speedup.model_dump() if self.placement.speedup else None,
            "rows": rows,
            "failures": dict(self.failures),
            "difference": dict(self.verdict.difference) if self.verdict.difference is not None else None,
            "reference": self.verdict.versus,
            "tolerance": self.verdict.tolerance,
            "objection": self.verdict.reason,
            "evaluations": self.tally.tried,
            "failed_evaluations": self.tally.num_failed,
            "evaluation_failures": dict(self.tally.failures),
            "simulated_evaluations": self.tally.simulated,
            "search_s": self.search_s,
            "run_folder": str(self.run_folder) if self.run_folder else None,
            "interrupted": self.interrupted,
            "warnings": list(self.warnings),
            "held_bytes": dict(self.held_bytes),
            "members": [each.document() for each in self.contributions],
            "turned_down": dict(self.turned_down),
        }


def idle_sentence(idle: Sequence[str], reason: str) -> str:
    """Which devices have nothing to do, and why."""
    return f"{' and '.join(idle)} {'get' if len(idle) > 1 else 'gets'} nothing: {reason}"


def speed_sentence(
    answer: str,
    best_single: str | None,
    ratio: Ratio,
    rivals: Mapping[str, Ratio],
    turned_down: Mapping[str, str] | None = None,
    over_hetero: Ratio | None = None,
    uncompared: str | None = None,
    *,
    over_start: Ratio | None = None,
    barred: Mapping[str, str] | None = None,
    unheld: str | None = None,
    no_single: str = NO_SINGLE,
    twin: str = "HETERO",
    takes: str = LATENCY.takes,
) -> str:
    """One sentence on the answer.

    ``rivals`` are OpenVINO's own choices, as ratios over the answer; ``turned_down`` are faster placements with
    the reason why they are not the answer, and the answer itself where there is an objection; ``over_hetero`` is
    what another executor gains over HETERO, or what ``twin`` names, with the same placement; ``uncompared`` is why no
    split was compared; ``over_start`` is what the answer gains over the placement that the search started with;
    ``barred`` says why candidates that are faster can be no answer, and why the best single device can be none;
    ``unheld`` is what OpenVINO's own choices are made without; ``no_single``
    says why there is no single device to compare with, where there is none; a plan ``takes`` so many times as long, or
    as much of what the objective counts.
    """
    faster_word = better_word(takes)
    turned_down, others = dict(turned_down or {}), dict(barred or {})
    no_answer = None if best_single is None else others.pop(best_single, None)
    objection = turned_down.pop(answer, None)
    reasons = "; ".join(f"{name} was {faster_word}, but {reason}" for name, reason in turned_down.items())
    if best_single is None:
        sentence = f"{no_single}; the placement does"
    elif no_answer is not None:
        sentence = (
            f"The best single device, {best_single}, can be no answer: {no_answer}; "
            f"it takes {ratio.value:.2f} {takes} {'as' if takes == LATENCY.takes else 'of'} the placement "
            f"{_interval(ratio)}"
        )
    elif answer == best_single and (reasons or uncompared):
        reasons = reasons or f"{uncompared}"
        sentence = f"{reasons[:1].upper()}{reasons[1:]}; the placement is all on {best_single}"
    elif answer == best_single:
        sentence = f"No placement beat {best_single}; the placement is all on {best_single}"
    elif takes != LATENCY.takes:
        sentence = f"The best single device, {best_single}, takes {ratio.value:.2f} {takes} of the placement"
        sentence += f" {_interval(ratio)}"
    else:
        gain = f"{100 * (ratio.value - 1):.1f}% faster (95% interval {100 * (ratio.low - 1):.1f}% to"
        sentence = f"The placement is {gain} {100 * (ratio.high - 1):.1f}%) than the best single device, {best_single}"
    if over_hetero is not None:
        sentence += f"; {twin} takes {over_hetero.value:.2f} {takes} with the same placement {_interval(over_hetero)}"
    if over_start is not None and over_start.value != 1.0:
        sentence += f"; the one to start with takes {over_start.value:.2f} {takes} {_interval(over_start)}"
    elif over_start is not None:
        sentence += "; it is the one to start with"
    faster = [name for name, over in rivals.items() if over.is_faster]
    if faster:
        names = " and ".join(faster)
        sentence += f"; OpenVINO's own {names} measured {faster_word} than the placement"
        sentence += f" {unheld}" if unheld is not None else ""
    for name, reason in others.items():
        sentence += f"; {name} was {faster_word}, but can be no answer: {reason}"
    if objection is not None:
        sentence += f"; note that {objection}"
    return sentence + "."


def better_word(takes: str) -> str:
    """What a plan is called that takes less."""
    return "faster" if takes == LATENCY.takes else "better"


def too_few_rounds(ratios: Mapping[str, Ratio]) -> dict[str, str]:
    """Why placements that seem faster than the best single device are not the answer, where rounds were too few."""
    why = f"too few to say so where {MIN_ROUNDS_TO_CLAIM} are needed: raise --budget"
    return {
        name: f"in {ratio.num_rounds} rounds only, {why}"
        for name, ratio in ratios.items()
        if ratio.value > 1.0 and not ratio.is_known
    }


def turned_down(result: FinalResult, finalists: Sequence[str]) -> dict[str, str]:
    """Why candidates that seem faster are not the answer, and what there is to object to the answer itself."""
    others = [name for name in finalists if name in result.ratios and name != result.answer]
    reasons = {name: verdict.reason for name, verdict in result.verdicts.items() if verdict.reason is not None}
    found = too_few_rounds({name: result.ratios[name] for name in others}) | reasons
    return {name: why for name, why in found.items() if name not in result.barred}


def _placements(count: int) -> str:
    return "1 placement was" if count == 1 else f"{count} placements were"


def _interval(ratio: Ratio) -> str:
    if not ratio.is_known:
        return f"(from {ratio.num_rounds} rounds, too few for an interval)"
    return f"(95% interval {ratio.low:.2f} to {ratio.high:.2f})"
