"""Outcome: what a search ends with, as values, as a table's rows, and in one honest sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hsdag.ir.placement import Placement
from hsdag.runtime.measuring.latency import Ratio


@dataclass(frozen=True)
class Row:
    """One measured candidate: seconds, its ratio to the best single device, submodels, ops per device."""

    name: str
    median_s: float
    p95_s: float
    runs: int
    ratio: Ratio
    submodels: int
    ops: Mapping[str, int]
    is_answer: bool


@dataclass(frozen=True)
class Outcome:
    """A finished search. ``failures`` says why candidates are missing from ``rows``."""

    placement: Placement
    rows: tuple[Row, ...]
    failures: Mapping[str, str]
    difference: Mapping[str, float | None] | None
    reference: str
    sentence: str
    num_evaluations: int
    search_s: float
    num_simulated: int = 0
    run_folder: Path | None = None
    interrupted: bool = False

    def document(self) -> dict[str, object]:
        """The JSON answer of ``hsdag place``, beside the placement file."""
        rows = [
            {
                "name": row.name,
                "median_s": row.median_s,
                "p95_s": row.p95_s,
                "runs": row.runs,
                "ratio_to_best_single": row.ratio.value,
                "ci95": row.ratio.interval,
                "submodels": row.submodels,
                "ops": dict(row.ops),
                "answer": row.is_answer,
            }
            for row in self.rows
        ]
        return {
            "sentence": self.sentence,
            "speedup": self.placement.speedup.model_dump() if self.placement.speedup else None,
            "rows": rows,
            "failures": dict(self.failures),
            "difference": dict(self.difference) if self.difference is not None else None,
            "reference": self.reference,
            "evaluations": self.num_evaluations,
            "simulated_evaluations": self.num_simulated,
            "search_s": self.search_s,
            "run_folder": str(self.run_folder) if self.run_folder else None,
            "interrupted": self.interrupted,
        }


def speed_sentence(
    answer: str,
    best_single: str | None,
    ratio: Ratio,
    rivals: Mapping[str, Ratio],
    turned_down: Mapping[str, str] | None = None,
    over_hetero: Ratio | None = None,
) -> str:
    """One sentence on the answer.

    ``rivals`` are OpenVINO's own choices, as ratios over the answer; ``turned_down`` are faster placements with
    the reason why they are not the answer; ``over_hetero`` is what another executor gains over HETERO with the same
    placement.
    """
    if answer == best_single and turned_down:
        reasons = "; ".join(f"{name} was faster, but its {reason}" for name, reason in turned_down.items())
        sentence = f"{reasons[:1].upper()}{reasons[1:]}; the placement is all on {best_single}"
    elif best_single is None:
        sentence = "No single device runs the whole model; the placement does"
    elif answer == best_single:
        sentence = f"No placement beat {best_single}; the placement is all on {best_single}"
    else:
        gain = f"{100 * (ratio.value - 1):.1f}% faster (95% interval {100 * (ratio.low - 1):.1f}% to"
        sentence = f"The placement is {gain} {100 * (ratio.high - 1):.1f}%) than the best single device, {best_single}"
    if over_hetero is not None:
        interval = f"95% interval {over_hetero.low:.2f} to {over_hetero.high:.2f}"
        sentence += f"; HETERO takes {over_hetero.value:.2f} times as long with the same placement ({interval})"
    faster = [name for name, over in rivals.items() if over.is_faster]
    if faster:
        names = " and ".join(faster)
        sentence += f"; OpenVINO's own {names} measured faster than the placement"
    return sentence + "."
