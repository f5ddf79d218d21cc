"""What is compiled before the clock of a search starts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from numba.core import event

from hsdag.placers.local.listed import Listed
from hsdag.placers.local.of_hetero import UnderHetero
from hsdag.placers.local.values import Scheduled
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.search.compiling import ONCE, compile_search
from tests.hsdag.placers.cuts.test_mincut_of_models import random_problem


def test_compiling_is_announced_once_and_takes_no_time_of_the_search() -> None:
    problem = problem_of(ScheduleProblem.from_arrays([[1.0, 2.0]] * 3, [(0, 1), (1, 2)]))
    placer, said = make_placer("auto", is_cheap=True), list[str]()
    compile_search(placer, problem, list, takes_order=True, say=said.append)
    assert len(said) <= 1
    again: list[str] = []
    assert compile_search(placer, problem, list, takes_order=True, say=again.append) == 0.0
    assert again == []


class Compiling(type(make_placer("met"))):  # type: ignore[misc]
    """Has two functions compiled, as numba tells of it."""

    def prepare(self, *_: object, **__: object) -> None:
        for _each in range(2):
            with event.trigger_event("numba:compile"):
                pass


def test_what_is_compiled_is_said_at_the_first_function() -> None:
    problem = problem_of(ScheduleProblem.from_arrays([[1.0, 2.0]], []))
    said: list[str] = []
    assert compile_search(Compiling(), problem, list, takes_order=True, say=said.append) > 0.0
    assert said == [ONCE]


def test_annealing_prepares_the_loop_of_every_ground(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[type] = []
    monkeypatch.setattr("hsdag.placers.local.base.propose", lambda ground, *_: made.append(type(ground)))
    problem = problem_of(ScheduleProblem.from_arrays([[1.0, 2.0]] * 4, [(0, 1), (1, 2), (2, 3)]))
    make_placer("auto", is_cheap=True).prepare(problem, takes_order=True)
    assert made == [Listed, Scheduled]
    of_hetero, costs = random_problem(5, 30)
    make_placer("auto", is_cheap=True).prepare(replace(of_hetero, hetero=costs), takes_order=False)
    assert made == [Listed, Scheduled, UnderHetero]


COLD = """
from numba.core import event
from hsdag import api
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher

class Late(event.Listener):
    def on_start(self, _):
        assert "searching" not in phases and "simulating every single device" not in phases, phases
    def on_end(self, _):
        pass

phases = []
problem = ScheduleProblem.from_arrays([[1.0, 2.0]] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], link_latency_s=0.1)
with event.install_listener("numba:compile", Late()):
    found = api.solve(problem, "heft", budget="0.5s", watcher=Watcher(on_phase=phases.append))
print(found.status.value)
"""


@pytest.mark.slow
def test_with_an_empty_cache_nothing_is_compiled_once_the_clock_runs(tmp_path: Path) -> None:
    """A numba that compiles within the budget ends a search of half a second before its method has begun."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COLD], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] != "time-limit"
