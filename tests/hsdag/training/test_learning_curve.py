"""Learning curves: pictures hold what was learned, and one line says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hsdag.cli.app import run
from hsdag.drawing import running_mean
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.sources import find_family


def test_the_running_mean_leaves_out_what_is_not_known() -> None:
    found = running_mean(np.array([1.0, np.nan, 3.0, 5.0, np.nan]), 2)
    np.testing.assert_allclose(found, [1.0, 1.0, 3.0, 4.0, 5.0])
    assert np.isnan(running_mean(np.array([np.nan, np.nan, np.nan]), 2)).all()


def test_solve_draws_a_learning_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    problem, curve = tmp_path / "problem.json", tmp_path / "curve.svg"
    write_problem(find_family("enas").problem(3), problem)
    assert run(["solve", str(problem), "--method", "doppler", "--set", "updates=1", "--set", "teacher_updates=0",
                "--set", "width=8", "--curve", str(curve), "--json"]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out)["method"] == "doppler"
    assert "best so far" in curve.read_text()


def test_a_method_that_learns_nothing_has_no_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    problem = tmp_path / "problem.json"
    write_problem(find_family("enas").problem(3), problem)
    assert run(["solve", str(problem), "--curve", str(tmp_path / "curve.svg")]) == 2
    assert capsys.readouterr().err.strip() == "hsdag: method 'auto' does not learn, so that it has no learning curve"
    asked = ["--method", "hsdag", "--workers", "local:2", "--budget", "5m", "--curve", str(tmp_path / "curve.svg")]
    assert run(["solve", str(problem), *asked]) == 2
    assert "--curve does not go with --workers" in capsys.readouterr().err
