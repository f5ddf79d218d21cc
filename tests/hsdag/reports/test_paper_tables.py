"""The papers' tables as typed: their own arithmetic holds, and Markdown shows what a table has."""

from __future__ import annotations

import pytest

from hsdag.ir.errors import OptionError
from hsdag.reports import markdown_table
from hsdag.reports.paper_tables import PAPER_TABLES, find_table


def mean(name: str, row: str, column: str) -> float:
    figure = find_table(name).figure(row, column)
    value = figure[0] if isinstance(figure, tuple) else figure
    assert isinstance(value, int | float)
    return float(value)


def test_speed_ups_that_the_hsdag_paper_states_follow_from_the_figures() -> None:
    for model, percent in (("inception_v3", 17.9), ("resnet50", 52.1), ("bert_base_uncased", 58.2)):
        ratio = mean("hsdag-2", model, "HSDAG") / mean("hsdag-2", model, "CPU-only")
        assert 100 * (1 - ratio) == pytest.approx(percent, abs=0.1)


@pytest.mark.parametrize(
    ("table", "row", "ours", "rivals", "percent"),
    [
        ("doppler-2", "chainmm", "DOPPLER-SIM", "PLACETO", 10.7),
        ("doppler-2", "ffnn", "DOPPLER-SYS", "GDP", 52.7),
        ("doppler-2", "llama-layer", "DOPPLER-SYS", "CRITICAL PATH", 48.5),
        ("doppler-8", "chainmm", "DOPPLER-SYS", "PLACETO", 49.6),
        ("doppler-9", "ffnn", "DOPPLER-SYS", "CRITICAL PATH", 67.7),
    ],
)
def test_reductions_that_the_doppler_paper_states_follow_from_the_figures(
    table: str, row: str, ours: str, rivals: str, percent: float
) -> None:
    assert 100 * (1 - mean(table, row, ours) / mean(table, row, rivals)) == pytest.approx(percent, abs=0.2)


@pytest.mark.parametrize(("row", "factor"), [("sdep, 5 modules", 37), ("wdep, 20 modules", 395)])
def test_factors_that_the_diviml_paper_states_follow_from_the_figures(row: str, factor: float) -> None:
    assert mean("diviml-3", row, "MILP") / mean("diviml-3", row, "MILP-SPLIT") == pytest.approx(factor, abs=0.5)


def test_the_papers_tables_are_these_and_a_wrong_name_lists_them() -> None:
    papers = {"hsdag": range(1, 6), "doppler": range(1, 12), "diviml": (1, 3, 4, 5), "placeto": (1, 2)}
    assert set(PAPER_TABLES) == {f"{paper}-{number}" for paper, numbers in papers.items() for number in numbers}
    with pytest.raises(OptionError, match="unknown table 'doppler-12'; choose one of hsdag-1, "):
        find_table("doppler-12")


def test_markdown_has_a_line_for_each_row_and_figures_to_the_right() -> None:
    lines = markdown_table(["method", "ms"], [["a|b", "1.5"], ["c", "-"]]).splitlines()
    assert lines == ["| method | ms |", "| --- | ---: |", "| a\\|b | 1.5 |", "| c | - |"]
