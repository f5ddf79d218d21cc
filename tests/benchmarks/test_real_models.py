"""The benchmark over strangers' models, on one of them, and the command that runs all benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_a_placed_model_is_compiled_run_and_compared_under_both_executors() -> None:
    options = ["--models", "light-squeezenet", "--placements", "1"]
    command = [sys.executable, str(BENCHMARKS / "real_models.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS.parent, check=False)
    assert "1 models placed; 4 of 4 placements right; 0 models failed" in done.stdout
    assert done.returncode == 0


def test_every_benchmark_is_in_the_table_of_the_command_that_runs_all() -> None:
    table = (BENCHMARKS / "run_all.py").read_text()
    commands = {path.stem for path in BENCHMARKS.glob("*.py") if '"__main__"' in path.read_text()} - {"run_all"}
    assert {name for name in commands if f'"{name} ' not in table} == set()
