"""Comparisons: every method has a row or a reason, means have intervals, and what was interrupted goes on."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from hsdag.base.errors import FileFormatError, ModelError, OptionError, SearchError
from hsdag.commands.compare import Comparison, MethodRow, Trial, compare, problem_called
from hsdag.methods.incumbent import GaveUp, Incumbent, Status
from hsdag.methods.lists.baselines import RandomPlacer
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from tests.hsdag.methods.exact.exact_reference import random_problem


@pytest.fixture(scope="module")
def problem() -> ScheduleProblem:
    """Twelve ops on three devices, none of which runs all of them."""
    drawn = random_problem(1, 12, 3)
    time_s = drawn.time_s.copy()
    time_s[:3] = 4.0
    time_s[np.arange(3), np.arange(3)] = np.nan
    return replace(drawn, time_s=time_s)


def compared(problem: ScheduleProblem, *methods: str, seeds: int = 3, most: int = 40, **given: Any) -> Comparison:
    return compare(problem, SolveOptions(budget_s=600.0, max_evaluations=most), methods, seeds, **given)


def test_every_method_has_a_row_or_the_reason_why_it_has_none(problem: ScheduleProblem) -> None:
    found = compared(problem, "heft", "random", "best-device")
    assert {row.method for row in found.rows} == {"heft", "random"}
    assert set(found.refused) == {"best-device"}
    assert [row.mean_s for row in found.rows] == sorted(row.mean_s for row in found.rows)
    bound_s = max(run.lower_bound_s for run in found.runs)
    assert bound_s > 0
    assert [row.gap for row in found.rows] == [pytest.approx(1 - bound_s / row.mean_s) for row in found.rows]
    assert found.is_complete
    assert len(found.runs) == 6


def test_each_seed_is_a_search_of_its_own_within_the_budget() -> None:
    apart = ScheduleProblem.from_arrays(np.random.default_rng(0).uniform(1, 2, (20, 3)), [])
    found = compared(apart, "random")
    assert [run.seed for run in found.runs] == [0, 1, 2]
    assert len({run.value_s for run in found.runs}) > 1
    assert all(run.evaluations <= 40 for run in found.runs)


def test_a_row_has_the_mean_its_interval_and_the_gap_to_the_largest_bound() -> None:
    values = [3.0, 4.0, 8.0]
    runs = [
        Trial(method="a", seed=s, value_s=v, lower_bound_s=b, elapsed_s=1.0 + s, evaluations=10 * s)
        for s, (v, b) in enumerate(zip(values, [1.0, 2.0, 1.5], strict=True))
    ]
    row = MethodRow.of("a", runs, 2.5)
    assert (row.mean_s, row.best_s, row.lower_bound_s, row.runs) == (5.0, 3.0, 2.0, 3)
    assert row.deviation_s == pytest.approx(np.std(values, ddof=1))
    quantile = 4.3026527  # of Student's distribution with two degrees of freedom, at 0.975
    assert row.ci95_s == pytest.approx(quantile * np.std(values, ddof=1) / np.sqrt(3))
    assert (row.gap, row.elapsed_s, row.evaluations) == (0.5, 2.0, 10.0)
    assert MethodRow.of("a", runs[:2], 2.5).ci95_s is None


def test_methods_are_paired_by_seed_and_the_intervals_of_all_pairs_hold_together(problem: ScheduleProblem) -> None:
    values = {"heft": [2.0, 2.5, 3.0, 2.2], "random": [4.0, 4.5, 6.5, 4.1], "ea": [3.0, 3.1, 3.9, 3.0]}
    runs = [
        Trial(method=method, seed=seed, value_s=value, elapsed_s=1.0)
        for method, own in values.items()
        for seed, value in reversed(list(enumerate(own)))
    ]
    lost = Trial(method="heft", seed=4, elapsed_s=1.0, failure="out of memory")  # its partners do not count
    setup = compared(problem, "heft", "random", "ea", seeds=1).setup
    found = Comparison(setup=setup, runs=(*runs, lost, Trial(method="ea", seed=4, value_s=9.0, elapsed_s=1.0)))
    assert [(pair.method, pair.versus) for pair in found.pairs] == [
        ("heft", "ea"), ("heft", "random"), ("ea", "random"),
    ]  # fmt: skip
    logs = {method: np.log(own) for method, own in values.items()}
    for pair in found.pairs:
        test = ttest_rel(logs[pair.versus], logs[pair.method])
        within = test.confidence_interval(1 - 0.05 / 3)
        assert pair.seeds == 4
        assert pair.ratio == pytest.approx(np.exp((logs[pair.versus] - logs[pair.method]).mean()))
        assert pair.ci95 == pytest.approx(np.exp([within.low, within.high]))
    columns, cells = found.table()
    times = [row[columns.index("times heft")] for row in cells]
    assert times[0] == "-"
    assert times[2].startswith(f"{found.pairs[1].ratio:.3f} (")


def test_the_csv_file_has_a_line_for_each_run_and_its_curve(problem: ScheduleProblem, tmp_path: Path) -> None:
    found = compared(problem, "heft", "random", seeds=2)
    curve = [(0.0, 9.0), (5.9, 8.0), (60.0, 7.0), (61.0, 6.0)]
    first = found.runs[0].model_copy(update={"curve": curve, "value_s": 6.0})
    path = tmp_path / "comparison.csv"
    found.model_copy(update={"runs": (first, *found.runs[1:])}).save(path)
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], int(line["seed"])) for line in lines] == [(run.method, run.seed) for run in found.runs]
    by = {name: float(value) for name, value in lines[0].items() if name.startswith("best_s_by_")}
    assert by["best_s_by_6s"] == 8.0  # the budget is 600 s
    assert by["best_s_by_30s"] == 8.0
    assert by["best_s_by_60s"] == 7.0
    assert by["best_s_by_600s"] == float(lines[0]["value_s"]) == 6.0


def test_a_run_has_its_curve_which_falls_to_its_value(problem: ScheduleProblem) -> None:
    for run in compared(problem, "random", most=200).runs:
        seconds, values = zip(*run.curve, strict=True)
        assert list(seconds) == sorted(seconds)
        assert list(values) == sorted(set(values), reverse=True)
        assert (values[-1], seconds[-1]) == (run.value_s, run.best_after_s)
        assert len(values) > 1


def test_an_interrupted_comparison_goes_on_to_what_it_would_have_been(problem: ScheduleProblem, tmp_path: Path) -> None:
    both, kept = partial(compared, problem, "heft", "random", seeds=2), tmp_path / "comparison.json"
    begun: list[str] = []
    stopping = Watcher(on_phase=begun.append, should_stop=lambda: len(begun) == 4)
    part = both(watcher=stopping, output=kept)
    assert (len(part.runs), part.is_complete) == (3, False)
    assert {row.method for row in part.rows} == {"heft", "random"}
    begun.clear()
    whole = both(watcher=Watcher(on_phase=begun.append), past=Comparison.load(kept))
    assert len(begun) == 1
    at_once = both()
    assert [(run.method, run.seed, run.value_s) for run in whole.runs] == [
        (run.method, run.seed, run.value_s) for run in at_once.runs
    ]


def test_a_comparison_is_resumed_with_the_same_settings_only(problem: ScheduleProblem) -> None:
    past = compared(problem, "heft", seeds=1)
    with pytest.raises(SearchError, match="max evaluations differs"):
        compared(problem, "heft", seeds=1, most=41, past=past)
    with pytest.raises(SearchError, match="the problem or its costs differs"):
        compared(replace(random_problem(3, 12, 3), name=problem.name), "heft", seeds=1, past=past)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (SearchError("no plan at all"), "no plan at all"),
        (GaveUp("out of memory for 4 units"), "out of memory for 4 units"),  # it has the best device, not its own plan
        (RuntimeError("shapes do not match"), None),
    ],
)
def test_a_method_that_fails_does_not_end_the_comparison_and_a_defect_does(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str | None
) -> None:
    def failing(_: RandomPlacer, __: Incumbent) -> Status:
        raise error

    monkeypatch.setattr(RandomPlacer, "_search", failing)
    able = ScheduleProblem.from_arrays(np.ones((4, 2)), [(0, 1), (0, 2)])
    if reason is None:
        with pytest.raises(RuntimeError, match="shapes do not match"):
            compared(able, "random", "heft", seeds=2)
        return
    found = compared(able, "random", "heft", seeds=2)
    assert found.failures == {"random": f"2 of 2 runs: {reason}"}
    assert [row.method for row in found.rows] == ["heft"]
    assert f"random failed in 2 of 2 runs: {reason}" in found.remarks()


def test_the_file_holds_rows_and_is_refused_where_it_is_no_comparison(problem: ScheduleProblem, tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    found = compared(problem, "heft", seeds=1)
    found.save(path)
    assert Comparison.load(path) == found
    assert '"rows"' in path.read_text()
    path.write_text('{"format": "hsdag-comparison", "version": 1, "setup": {}}')
    with pytest.raises(FileFormatError, match=r"setup\.problem: Field required"):
        Comparison.load(path)


@pytest.mark.parametrize(
    ("given", "message"), [(((), 0), "seeds must be at least 1, not 0"), ((("heft", "heft"),), "a method twice")]
)
def test_wrong_options_are_named(problem: ScheduleProblem, given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        compare(problem, SolveOptions(), *given)


def test_a_workload_and_a_model_are_problems_by_name(tiny_resnet: Path) -> None:
    wired = problem_called("random-wired[family=er;nodes=5;modules=1]")
    assert (wired.num_ops > 5, wired.num_devices) == (True, 3)
    model = problem_called(str(tiny_resnet), platform="p100x4")
    assert (model.model is not None, model.num_devices) == (True, 4)


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        ("chainmn", {}, "'chainmn' is no file, and no workload; workloads are chainmm"),
        ("chainmm", {"devices": "CPU"}, "devices does not go with a workload"),
        ("pyproject.toml", {"platform": "p100x4", "devices": "CPU"}, "devices does not go with platform"),
    ],
)
def test_what_does_not_go_with_a_source_is_refused(source: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises((ModelError, OptionError), match=message):
        problem_called(source, **given)
