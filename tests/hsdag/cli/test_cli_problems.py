"""``hsdag simulate`` and ``hsdag solve``: what they answer, and one clear line for every mistake."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsdag.cli.app import run
from hsdag.ir.placement.placement import Placement
from hsdag.methods import method_names
from tests.hsdag.commands import answer

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


def changed(change: Callable[[Json], object]) -> str:
    document = copy.deepcopy(PROBLEM)
    change(document)
    return json.dumps(document)


def whole_placement(**fields: object) -> str:
    document = {
        "model": {"name": "diamond", "fingerprint": "sha256:" + 64 * "0"},
        "devices": [{"name": "gpu", "plugin": "GPU"}, {"name": "cpu", "plugin": "CPU"}],
        "affinity": SPLIT,
        "method": "heft",
        "seed": 0,
        "objective": "latency",
        "executor": "work-conserving",
        **fields,
    }
    return Placement.model_validate(document).to_json()


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


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("--execution", "sequential"), (1 + 2 + 2 + 1) + 2 * 1),
        (("--objective", "throughput"), 4),
        (("--objective", "throughput", "--links", "blocking"), 4 + 2 * 1),
    ],
)
def test_simulate_answers_in_seconds_by_what_is_asked(
    capsys: pytest.CaptureFixture[str], problem: Path, placement: Path, words: tuple[str, ...], value: float
) -> None:
    document = answer(capsys, "simulate", problem, placement, *words)
    assert (document["value"], document["unit"]) == (value, "s")


def test_simulate_names_devices_that_are_too_small(
    capsys: pytest.CaptureFixture[str], problem: Path, placement: Path
) -> None:
    problem.write_text(changed(lambda d: d["devices"][0].update(memory_bytes=75)))
    assert answer(capsys, "simulate", problem, placement)["over_memory"] == ["gpu"]
    assert run(["simulate", str(problem), str(placement)]) == 0
    assert "gpu holds more than its memory" in capsys.readouterr().out


def test_priorities_of_a_placement_are_followed(capsys: pytest.CaptureFixture[str], problem: Path) -> None:
    path = problem.with_name("whole.json")
    everything = dict.fromkeys(SPLIT, "gpu")
    path.write_text(whole_placement(affinity=everything, priority={"a": 0, "b": 2, "c": 1, "d": 3}))
    document = answer(capsys, "simulate", problem, path)
    assert document["order"] == "priority"
    trace = problem.with_name("t.json")
    for words, order in (((), "acbd"), (("--order", "fifo"), "abcd")):
        answer(capsys, "simulate", problem, path, "--trace", trace, *words)
        assert [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"] == list(order)


def test_tables_say_that_they_are_simulated(capsys: pytest.CaptureFixture[str], problem: Path, placement: Path) -> None:
    assert run(["simulate", str(problem), str(placement)]) == 0
    assert "Simulated makespan 6000 ms" in capsys.readouterr().out
    assert run(["solve", str(problem), "--method", "best-device"]) == 0
    text = capsys.readouterr().out
    bound = "lower bound 5000 ms by paths that pay for transfers"
    assert all(claim in text for claim in ("SIMULATED diamond", bound, "All on gpu: 7000 ms"))
    assert "The placement is in" not in text


def test_solve_answers_in_full_and_its_placement_simulates_alike(
    capsys: pytest.CaptureFixture[str], problem: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    files = ("--trace", tmp_path / "t.json", "--gantt", tmp_path / "g.svg")
    document = answer(capsys, "solve", problem, "--method", "heft", "-o", out, *files)
    assert document["value"] <= 7
    assert (document["lower_bound"], document["bound_by"]) == (1 + 2 + 1 + 1, "paths that pay for transfers")
    assert document["gap"] == pytest.approx(1 - 5 / document["value"])
    assert document["placement"].keys() == SPLIT.keys()
    assert document["schedule"][0] == {"op": "a", "device": "gpu", "start_s": 0, "end_s": 1}
    assert Placement.load(out).affinity == document["placement"]
    assert answer(capsys, "simulate", problem, out)["value"] == document["value"]
    assert {path.name for path in tmp_path.iterdir()} == {"problem.json", "out.json", "t.json", "g.svg"}


def test_solve_says_that_nothing_fits(capsys: pytest.CaptureFixture[str], problem: Path, tmp_path: Path) -> None:
    def shrink(d: Json) -> None:
        d["devices"] = [{"name": "gpu", "memory_bytes": 50}, {"name": "cpu", "memory_bytes": 50}]
        d["ops"][2]["weight_bytes"] = 28

    problem.write_text(changed(shrink))
    out = tmp_path / "out.json"
    document = answer(capsys, "solve", problem, "--method", "best-device", "-o", out)
    assert (document["status"], document["placement"], document["schedule"]) == ("infeasible", None, [])
    assert not out.exists()
    assert run(["solve", str(problem)]) == 0
    assert "No placement fits into the memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (changed(lambda d: d["edges"].append({"src": "d", "dst": "a"})), "the edges form a cycle: "),
        ("[" * 99_999, "not "),
    ],
)
def test_a_bad_problem_is_one_line_through_both_commands(
    complains: Complains, problem: Path, placement: Path, text: str, line: str
) -> None:
    problem.write_text(text)
    for words in (("simulate", problem, placement), ("solve", problem, "--method", "best-device")):
        message = complains(*words)
        assert line in message
        assert str(problem) in message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (json.dumps({k: v for k, v in SPLIT.items() if k != "c"}), "has no entry for op 'c'"),
        (json.dumps({**SPLIT, "z": "gpu"}), "names op 'z'"),
        (json.dumps({**SPLIT, "a": "tpu"}), "op 'a' is on unknown device 'tpu'; the problem has gpu, cpu"),
        (json.dumps({**SPLIT, "d": "cpu"}), "op 'd' is on device 'cpu', which does not support it"),
        (json.dumps({**SPLIT, "d": 1}), "'d': a device name is expected, not 1"),
        ("[]", "a placement must be a non-empty object"),
        (whole_placement(priority={"a": 1}), "'priority' has no entry for op 'b' and 2 more"),
        (whole_placement(priority={**dict.fromkeys(SPLIT, 1), "z": 1}), "'priority' names op 'z'"),
        (whole_placement().replace('"heft"', "3"), "method: "),
    ],
)
def test_a_bad_placement_is_one_line(complains: Complains, problem: Path, text: str, line: str) -> None:
    path = problem.with_name("bad.json")
    path.write_text(text)
    message = complains("simulate", problem, path)
    assert line in message
    assert str(path) in message


OPTIONS: list[tuple[tuple[str, ...], str]] = [
    (("--order", "priority"), "needs priorities"),
    (("--order", "best"), "choose one of priority, fifo"),
    (("--execution", "magic"), "choose one of work-conserving, sequential"),
    (("--links", "magic"), "choose one of independent, egress"),
    (("--links", "blocking"), "throughput"),
    (("--objective", "heat"), "choose one of energy, latency, memory, throughput"),
    (("--seed", "-1"), "the seed must be"),
    (("--gantt", "g.pdf"), "ends in .png or .svg"),
]
SOLVE_ONLY = [
    (("--method", "magic"), f"choose one of {', '.join(method_names())}"),
    (("--budget", "0"), "--budget must be more than zero"),
    (("--max-evaluations", "0"), "at least 1"),
]


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


@pytest.mark.parametrize(
    ("command", "option"), [*itertools.product(["simulate", "solve"], ["--trace", "--gantt"]), ("solve", "-o")]
)
def test_a_file_that_cannot_be_written_is_told_before_any_work(
    complains: Complains, problem: Path, placement: Path, command: str, option: str
) -> None:
    files = (problem, placement) if command == "simulate" else (problem,)
    target = problem.parent / "none" / "out.svg"
    assert "there is no folder" in complains(command, *files, option, target)
    assert "is a folder" in complains(command, *files, option, problem.parent)
    before = problem.read_bytes()
    assert "is read by this command" in complains(command, *files, option, problem)
    assert problem.read_bytes() == before


def test_one_file_is_not_written_twice(complains: Complains, problem: Path, placement: Path) -> None:
    twice = problem.with_name("out.svg")
    assert "written twice" in complains("simulate", problem, placement, "--trace", twice, "--gantt", twice)
    files = ("--output", twice, "--trace", twice, "--gantt", problem.with_name("other.svg"))
    assert f"{twice} would be written twice" in complains("solve", problem, *files)
