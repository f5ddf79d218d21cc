"""``hsdag compare``: what it prints and writes, and one clear line for every mistake."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from platform import node
from typing import Any

import pytest

from hsdag import comparing
from hsdag.cli.app import run
from hsdag.comparing import Comparison, Run
from hsdag.runtime.problem.problem_file import write_problem
from tests.hsdag.commands import answer
from tests.hsdag.methods.exact.exact_reference import random_problem

FEW = ("--methods", "heft,random", "--seeds", "2", "--max-evaluations", "20")


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    write_problem(random_problem(1, 10, 3), path)
    return path


def test_the_answer_is_the_file_and_resuming_a_whole_one_searches_no_more(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "comparison.json"
    document = answer(capsys, "compare", problem, *FEW, "-o", file)
    assert document == json.loads(file.read_text())
    assert [row["runs"] for row in document["rows"]] == [2, 2]
    assert document["simulated"] is True
    monkeypatch.setattr(comparing, "solve", None)
    assert answer(capsys, "compare", problem, *FEW, "--resume", file) == document


def test_ctrl_c_prints_what_there_is_and_keeps_it(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, search = tmp_path / "comparison.json", comparing.run_once

    def interrupted(*given: Any) -> Run:
        if given[1].seed == 1:
            signal.raise_signal(signal.SIGINT)
        return search(*given)

    monkeypatch.setattr(comparing, "run_once", interrupted)
    assert run(["compare", str(problem), *FEW, "-o", str(file)]) == 0
    printed = capsys.readouterr()
    assert "heft" in printed.out
    assert "The comparison is not complete" in printed.out
    assert "interrupted: 2 runs are in the table" in printed.err
    assert len(Comparison.load(file).runs) == 2


@pytest.mark.slow
def test_runs_on_workers_are_those_of_this_process_and_say_where(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--methods", "heft,ea", "--seeds", "2", "--max-evaluations", "50", "--budget", "60s"]
    here = answer(capsys, "compare", problem, *few)
    away = answer(capsys, "compare", problem, *few, "--workers", "local:2")
    plain = {(run["method"], run["seed"]): (run["value_s"], run["host"]) for run in here["runs"]}
    found = {(run["method"], run["seed"]): (run["value_s"], run["host"]) for run in away["runs"]}
    assert found == {key: (value, node()) for key, (value, _) in plain.items()}
    assert {host for _, host in plain.values()} == {None}
