"""``hsdag simulate``, ``solve`` and ``compare``: what they answer, and one clear line for every mistake."""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Callable
from pathlib import Path
from platform import node
from typing import Any

import pytest

from hsdag.cli.app import run
from hsdag.commands import compare as comparing
from hsdag.commands.compare import Comparison, Trial
from hsdag.ir.placement.placement import Placement
from hsdag.methods import method_names
from hsdag.runtime.problem.problem_file import write_problem
from tests.hsdag.answers import answer
from tests.hsdag.methods.exact.exact_reference import random_problem

Json = dict[str, Any]
Complains = Callable[..., str]

# gpu: a 0-1, b 1-3; a's 4 bytes go to cpu in 0.5 + 4/8 = 1 s, c there 2-4; b and c meet in d on gpu
PROBLEM: Json = {
    "format": "hsdag-problem",
    "version": 1,
    "name": "diamond",
    "devices": [{"name": "gpu", "memory_bytes": 100}, {"name": "cpu"}],
    "links": {"bandwidth_bytes_per_s": [[None, 8], [8, None]], "latency_s": [[None, 0.5], [0.5, None]]},
    "ops": [
        {"name": "a", "type": "MatMul", "time_s": [1, 4], "output_bytes": 4, "weight_bytes": 30},
        {"name": "b", "type": "MatMul", "time_s": [2, 8], "output_bytes": 4, "weight_bytes": 40},
        {"name": "c", "type": "Relu", "time_s": [3, 2], "output_bytes": 4},
        {"name": "d", "type": "Add", "time_s": [1, None], "output_bytes": 4},
    ],
    "edges": [{"src": s, "dst": d} for s, d in (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))],
}
SPLIT = {"a": "gpu", "b": "gpu", "c": "cpu", "d": "gpu"}


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    return path


@pytest.fixture
def placement(tmp_path: Path) -> Path:
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(SPLIT))
    return path


def test_simulate_answers_what_the_problem_says(
    capsys: pytest.CaptureFixture[str], problem: Path, placement: Path
) -> None:
    document = answer(capsys, "simulate", problem, placement)
    assert document["value"] == 4 + 1 + 1  # c's result is on gpu at 5
    assert document["busy_s"] == {"gpu": 4.0, "cpu": 2.0}
    assert document["peak_memory_bytes"]["cpu"] == 8  # a's copy and c's result
    assert (document["transfers"], document["transfer_bytes"]) == (2, 8)
    assert (document["execution"], document["order"], document["links"]) == ("work-conserving", "fifo", "independent")
    assert (document["simulated"], document["over_memory"]) == (True, [])


def test_tables_say_that_they_are_simulated(capsys: pytest.CaptureFixture[str], problem: Path, placement: Path) -> None:
    assert run(["simulate", str(problem), str(placement)]) == 0
    assert "Simulated makespan 6000 ms" in capsys.readouterr().out
    assert run(["solve", str(problem), "--method", "best-device"]) == 0
    text, said = capsys.readouterr()
    assert "HETERO" not in said  # of a problem that is no model's
    bound = "lower bound 5000 ms by paths that pay for transfers"
    assert all(claim in text for claim in ("SIMULATED diamond", bound, "All on gpu: 7000 ms"))
    assert "The placement is in" not in text


def test_solve_answers_in_full_and_its_placement_simulates_alike(
    capsys: pytest.CaptureFixture[str], problem: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    document = answer(capsys, "solve", problem, "--method", "heft", "-o", out, "--trace", tmp_path / "t.json")
    assert document["value"] <= 7
    assert (document["lower_bound"], document["bound_by"]) == (1 + 2 + 1 + 1, "paths that pay for transfers")
    assert document["gap"] == pytest.approx(1 - 5 / document["value"])
    assert document["placement"].keys() == SPLIT.keys()
    assert document["schedule"][0] == {"op": "a", "device": "gpu", "start_s": 0, "end_s": 1}
    assert Placement.load(out).affinity == document["placement"]
    assert answer(capsys, "simulate", problem, out)["value"] == document["value"]
    assert {path.name for path in tmp_path.iterdir()} == {"problem.json", "out.json", "t.json"}


def test_solve_says_that_nothing_fits(capsys: pytest.CaptureFixture[str], problem: Path, tmp_path: Path) -> None:
    small = copy.deepcopy(PROBLEM)
    small["devices"] = [{"name": "gpu", "memory_bytes": 50}, {"name": "cpu", "memory_bytes": 50}]
    small["ops"][2]["weight_bytes"] = 28
    problem.write_text(json.dumps(small))
    out = tmp_path / "out.json"
    document = answer(capsys, "solve", problem, "--method", "best-device", "-o", out)
    assert (document["status"], document["placement"], document["schedule"]) == ("infeasible", None, [])
    assert not out.exists()
    assert run(["solve", str(problem)]) == 0
    assert "No placement fits into the memory" in capsys.readouterr().out


OPTIONS: list[tuple[tuple[str, ...], str]] = [
    (("--order", "priority"), "needs priorities"),
    (("--order", "best"), "choose one of priority, fifo"),
    (("--execution", "magic"), "choose one of work-conserving, sequential"),
    (("--links", "magic"), "choose one of independent, egress"),
    (("--objective", "heat"), "choose one of energy, latency, memory, throughput"),
    (("--seed", "-1"), "the seed must be"),
]
SOLVE_ONLY = [(("--method", "magic"), f"choose one of {', '.join(method_names())}")]


@pytest.mark.parametrize(
    ("command", "options", "line"),
    [*(("simulate", *each) for each in OPTIONS), *(("solve", *each) for each in OPTIONS + SOLVE_ONLY)],
)
def test_an_option_out_of_range_is_one_line(
    complains: Complains, problem: Path, placement: Path, command: str, options: tuple[str, ...], line: str
) -> None:
    method = () if "--method" in options else ("--method", "best-device")
    more = (placement,) if command == "simulate" else method
    assert line in complains(command, problem, *more, *options)


@pytest.mark.parametrize(("command", "option"), [("simulate", "--trace"), ("solve", "--trace"), ("solve", "-o")])
def test_a_file_that_cannot_be_written_is_told_before_any_work(
    complains: Complains, problem: Path, placement: Path, command: str, option: str
) -> None:
    files = (problem, placement) if command == "simulate" else (problem,)
    target = problem.parent / "none" / "out.json"
    assert "there is no folder" in complains(command, *files, option, target)
    assert "is a folder" in complains(command, *files, option, problem.parent)
    before = problem.read_bytes()
    assert "is read by this command" in complains(command, *files, option, problem)
    assert problem.read_bytes() == before


def test_one_file_is_not_written_twice(complains: Complains, problem: Path) -> None:
    twice = problem.with_name("out.json")
    assert f"{twice} would be written twice" in complains("solve", problem, "--output", twice, "--trace", twice)


FEW = ("--methods", "heft,random", "--seeds", "2", "--max-evaluations", "20")


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    write_problem(random_problem(1, 10, 3), path)
    return path


def test_the_answer_is_the_file_and_resuming_a_whole_one_searches_no_more(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "comparison.json"
    document = answer(capsys, "compare", compared, *FEW, "-o", file)
    assert document == json.loads(file.read_text())
    assert [row["runs"] for row in document["rows"]] == [2, 2]
    assert document["simulated"] is True
    monkeypatch.setattr(comparing, "solve", None)
    assert answer(capsys, "compare", compared, *FEW, "--resume", file) == document


def test_ctrl_c_prints_what_there_is_and_keeps_it(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, search = tmp_path / "comparison.json", comparing.run_once

    def interrupted(*given: Any) -> Trial:
        if given[1].seed == 1:
            signal.raise_signal(signal.SIGINT)
        return search(*given)

    monkeypatch.setattr(comparing, "run_once", interrupted)
    assert run(["compare", str(compared), *FEW, "-o", str(file)]) == 0
    printed = capsys.readouterr()
    assert "heft" in printed.out
    assert "The comparison is not complete" in printed.out
    assert "interrupted: 2 runs are in the table" in printed.err
    assert len(Comparison.load(file).runs) == 2


@pytest.mark.slow
def test_runs_on_workers_are_those_of_this_process_and_say_where(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--methods", "heft,ea", "--seeds", "2", "--max-evaluations", "50", "--budget", "60s"]
    here = answer(capsys, "compare", compared, *few)
    away = answer(capsys, "compare", compared, *few, "--workers", "local:2")
    plain = {(run["method"], run["seed"]): (run["value_s"], run["host"]) for run in here["runs"]}
    found = {(run["method"], run["seed"]): (run["value_s"], run["host"]) for run in away["runs"]}
    assert found == {key: (value, node()) for key, (value, _) in plain.items()}
    assert {host for _, host in plain.values()} == {None}
