"""Learning curves: pictures hold what was learned, and one line says what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsdag.cli.app import run
from hsdag.drawing import running_mean
from hsdag.ir.errors import OptionError
from hsdag.methods.learned.base import tell_updates
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.scoring.base import CurvePoint
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from hsdag.sources import find_family


def test_the_running_mean_leaves_out_what_is_not_known() -> None:
    found = running_mean(np.array([1.0, np.nan, 3.0, 5.0, np.nan]), 2)
    np.testing.assert_allclose(found, [1.0, 1.0, 3.0, 4.0, 5.0])
    assert np.isnan(running_mean(np.array([np.nan, np.nan, np.nan]), 2)).all()


def test_updates_are_told_with_the_best_value_so_far() -> None:
    problem, points = find_family("enas").problem(3), list[CurvePoint]()
    placer = make_placer("doppler", changes={"width": "8", "updates": "4", "teacher_updates": "1"})
    tell_updates(placer, points.append)
    found = solve(problem, placer, SolveOptions("doppler", budget_s=60.0))
    assert [point.update for point in points] == [1, 2, 3]  # the first one imitates
    assert points[-1].best_so_far == pytest.approx(found.value_s)
    assert all(point.best_so_far <= point.best <= point.mean for point in points)
    with pytest.raises(OptionError, match="method 'heft' does not learn, so that it has no learning curve"):
        tell_updates(make_placer("heft"), print)


def test_a_method_that_learns_nothing_has_no_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    problem = tmp_path / "problem.json"
    write_problem(find_family("enas").problem(3), problem)
    assert run(["solve", str(problem), "--curve", str(tmp_path / "curve.svg")]) == 2
    assert capsys.readouterr().err.strip() == "hsdag: method 'auto' does not learn, so that it has no learning curve"
    asked = ["--method", "hsdag", "--workers", "local:2", "--budget", "5m", "--curve", str(tmp_path / "curve.svg")]
    assert run(["solve", str(problem), *asked]) == 2
    assert "--curve does not go with --workers" in capsys.readouterr().err
