"""The benchmark of endurance, in short: what is provoked is all that goes wrong, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_inferences_with_faults_between_them_are_right_and_leave_nothing_behind() -> None:
    command = [sys.executable, str(BENCHMARKS / "executor_endurance.py"), "--inferences", "400", "--hangs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=BENCHMARKS.parent, check=False)
    assert " inferences, 0 that did not end as they should" in done.stdout
    assert done.returncode == 0
