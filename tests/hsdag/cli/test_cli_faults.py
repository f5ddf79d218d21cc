"""Faults of the machine: one line, nothing half-written, the best so far kept."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hsdag.base.files import FileLock
from hsdag.cli.app import SHORTAGES, run
from hsdag.ir.placement.placement import Placement
from hsdag.models import save_model_files
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from tests.hsdag.runtime.executor.hand_backend import await_until

HSDAG = (sys.executable, "-m", "hsdag")


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A problem that annealing is never done with."""
    path = tmp_path_factory.mktemp("problem") / "problem.json"
    assert run(["models", "build", "llama-block", "-o", str(path)]) == 0
    return path


def started(*arguments: object, **options: object) -> subprocess.Popen[str]:
    command = [*HSDAG, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
def test_a_full_disk_under_the_answer_is_one_line(tmp_path: Path) -> None:
    small = tmp_path / "problem.json"  # of which the interpreter simulates a placement
    write_problem(ScheduleProblem.from_arrays(np.ones((40, 2)), []), small)
    with Path("/dev/full").open("w") as full:
        command = [*HSDAG, "solve", str(small), "--method", "best-device", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "hsdag: the disk is full; make room, and run the command again"


@pytest.mark.parametrize("number", [*sorted(SHORTAGES), errno.ESPIPE])
def test_what_a_machine_runs_out_of_is_no_defect_of_ours(
    number: int, problem: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "somewhere")

    monkeypatch.setattr("hsdag.api.solve", short)
    assert run(["solve", str(problem)]) == (2 if number in SHORTAGES else 1)
    reason = SHORTAGES.get(number)
    assert reason is None or capsys.readouterr().err.splitlines()[-1] == f"hsdag: somewhere: {reason}"


def test_two_trainings_of_one_policy_are_one_and_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileLock(tmp_path / "policy.lock", "busy"):
        assert run(["train", "enas", "-o", str(tmp_path / "policy.safetensors")]) == 2
    assert "another training is writing to" in capsys.readouterr().err


@pytest.mark.slow
def test_sigterm_ends_a_search_as_ctrl_c_does_with_the_best_so_far_and_143(problem: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    with started("solve", problem, "--method", "sa", "--budget", "300s", "--json", "-o", plan) as process:
        await_until(plan.exists)
        process.send_signal(signal.SIGTERM)
        answer, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert json.loads(answer)["interrupted"]
    assert set(Placement.load(plan).affinity.values()) <= set(json.loads(answer)["placement"].values())


@pytest.mark.slow
def test_sigterm_ends_what_is_no_search_at_once_and_leaves_no_temporary_files(tmp_path: Path) -> None:
    model = save_model_files("tiny_bert", tmp_path / "model.xml")
    with started("profile", model, "--partition-cpu", "2", "--fresh", env=os.environ | {"TMPDIR": str(tmp_path)}) as p:
        await_until(lambda: bool(list(tmp_path.glob("hsdag-*"))))
        p.send_signal(signal.SIGTERM)
        errors = p.communicate(timeout=120)[1]
    assert p.returncode == 143, errors
    assert not list(tmp_path.glob("hsdag-*"))


@pytest.mark.slow
def test_a_solve_that_is_killed_goes_on_from_the_best_it_had_written(problem: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    command = ["solve", problem, "--method", "sa", "-o", plan]
    with started(*command, "--budget", "300s") as process:
        await_until(plan.exists)
        process.kill()
    before = Placement.load(plan).latency
    assert run([*map(str, command), "--budget", "1s", "--start", str(plan)]) == 0
    after = Placement.load(plan).latency
    assert before is not None
    assert after is not None
    assert after.median_s <= before.median_s
