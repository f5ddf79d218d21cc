"""Tables of a search's result: its candidates, their scenarios, and the settings that were raced."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hsdag.commands.place.records import DeviceSettings, Row, ScenarioRecord, is_disturbed
from hsdag.ir.graph.scenario import token_words
from hsdag.runtime.machine.devices import DEFAULT
from hsdag.runtime.measuring.settings import setting_name
from hsdag.runtime.objectives import LATENCY, Objective

CLOSE = 1.05
"""Ratio of an interval's ends below which an interval around 1 means that both are equally fast."""

MOST_ROWS = 6
"""Largest number of rows in the short table; the answer, the best device and defaults are always in it."""

_NUMBERED = re.compile(r" \d+$")


def comparison_table(rows: Sequence[Row], objective: Objective) -> tuple[list[str], list[list[str]]]:
    """Return columns and cells of all rows, the fastest first."""
    unit = objective.shown_unit
    columns = ["candidate", f"median {unit}", f"p95 {unit}", "x best device", "95% interval", "submodels"]
    cells = [
        [
            f"{row.name} *" if row.is_answer else row.name,
            objective.figure(row.median),
            objective.figure(row.p95),
            f"{row.ratio:.3f}",
            row.over.interval_text,
            str(row.submodels),
            " ".join(f"{device}:{count}" for device, count in row.ops.items() if count) or "-",
        ]
        for row in rows
    ]
    return [*columns, "ops per device"], cells


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
    for scenario in scenarios:
        words, count = token_words(scenario.tokens) if scenario.tokens else (scenario.data_shape, 0)
        columns += [f"{words}, ms", *["tokens/s"] * (count == 1)]
    cells = []
    for name, taken_s in medians_s.items():
        row = [name]
        for scenario, seconds in zip(scenarios, taken_s, strict=False):
            row.append("-" if seconds is None else f"{1e3 * seconds:.4g}")
            if scenario.tokens and token_words(scenario.tokens)[1] == 1:
                row.append("-" if seconds is None else f"{1 / seconds:.4g}")
        cells += [row] if len(row) == len(columns) else []
    return columns, cells


def settings_table(settings: Sequence[DeviceSettings]) -> tuple[list[str], list[list[str]]]:
    """Return columns and cells of the raced settings: the ratio to the best one before, or the failure."""
    cells = []
    for device, tried in ((raced.device, tried) for raced in settings for tried in raced.tried):
        low, high = tried.ci95
        interval = "too few rounds" if low is None or high is None else f"{low:.3f}..{high:.3f}"
        how = ["-", tried.failure or ""] if tried.ratio is None else [f"{tried.ratio:.3f}", interval]
        cells.append([device, setting_name(tried.setting), *how])
    return ["device", "setting", "x", "95% interval"], cells
