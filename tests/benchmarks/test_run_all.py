"""The command that runs all benchmarks."""

from __future__ import annotations

from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_benchmark_is_in_the_table_of_the_command_that_runs_all() -> None:
    table = (BENCHMARKS / "run_all.py").read_text()
    commands = {path.stem for path in BENCHMARKS.glob("*.py") if '"__main__"' in path.read_text()} - {"run_all"}
    assert {name for name in commands if f'"{name} ' not in table} == set()
