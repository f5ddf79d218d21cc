"""Where only other systems' ways are there: commands do their work without what POSIX and Linux have."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hsdag.base.host import kill_with_children, start_process

ROOT = Path(__file__).parents[3]
WITHOUT = """
import builtins, os, signal
MISSING, imported = ("fcntl", "resource", "pwd", "grp", "termios"), builtins.__import__
def found(name, globals=None, *more, **named):
    if name in MISSING and (globals or {}).get("__name__", "").startswith("hsdag"):
        raise ModuleNotFoundError(name)
    return imported(name, globals, *more, **named)
builtins.__import__ = found
for name in ("killpg", "getpgid", "setsid", "sched_getaffinity"):
    vars(os).pop(name, None)
vars(signal).pop("alarm", None)
"""
"""What ``sitecustomize`` takes away from hsdag in every process, those of workers among them."""

COMMANDS = """
import sys
from pathlib import Path
import hsdag.base.host as host
assert host.fcntl is None
host.PROC = host.SYS = Path("nowhere")
from hsdag.cli.app import run
for line in sys.stdin.read().splitlines():
    assert run(line.split()) == 0, line
"""


@pytest.mark.slow
def test_models_are_inspected_and_placed_and_problems_solved_without_what_posix_has(
    tiny_resnet: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    lines = [
        f"inspect {tiny_resnet}",
        "models build chainmm[size=64;devices=2] -o problem.json",
        "solve problem.json --method heft -o solved.json",
        "simulate problem.json solved.json",
        f"place {tiny_resnet} --partition-cpu 2 --budget 8s --max-evaluations 4 -o out.json",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=tmp_path, env=environment, input="\n".join(lines),
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.json").is_file()


def test_where_there_are_no_groups_of_processes_a_process_and_its_children_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "killpg")
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (tmp_path / "log").open("wb") as log:
        process, connection = start_process([sys.executable, "-c", f"import subprocess as s; s.run({sleeper})"], log)
    while not (children := psutil.Process(process.pid).children()):
        time.sleep(0.01)
    kill_with_children(process)
    connection.close()
    assert process.wait(10) != 0
    assert not psutil.wait_procs(children, 10)[1]


def test_a_deadline_ends_a_process_that_hangs() -> None:
    program = (
        "from hsdag.base.host import deadline\nimport time\nwith deadline(60): pass\nwith deadline(1): time.sleep(60)\n"
    )
    begin_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, timeout=50, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 1
    assert time.monotonic() - begin_s < 40
