"""The benchmark over strangers' models, on a model of our own, and the command that runs all benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_a_placed_model_is_compiled_run_and_compared_under_both_executors(tmp_path: Path) -> None:
    options = ["--models", "zoo-tiny_resnet", "--placements", "1", "--folder", str(tmp_path), "--json"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "real_models.py"), *options],
        capture_output=True,
        text=True,
        cwd=BENCHMARKS.parent,
        check=False,
    )
    [row] = json.loads(done.stdout)["rows"]
    assert [(a["placement"], a["executor"]) for a in row["attempts"]] == [
        (k, executor) for k in (0, 1) for executor in ("hetero", "work-conserving")
    ]
    for attempt in row["attempts"]:
        assert attempt["reason"] is None
        assert attempt["difference"] <= attempt["tolerance"]
    random_one, halves = (a for a in row["attempts"] if a["executor"] == "hetero")
    assert random_one["submodels"] > halves["submodels"] == 2
    assert random_one["same_members"]
    assert done.returncode == 0


def test_every_benchmark_is_in_the_table_of_the_command_that_runs_all() -> None:
    table = (BENCHMARKS / "run_all.py").read_text()
    commands = {path.stem for path in BENCHMARKS.glob("*.py") if '"__main__"' in path.read_text()} - {"run_all"}
    assert {name for name in commands if f'"{name}": Small(' not in table} == set()
