"""What is compiled before the clock of a search starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numba.core import event

from hsdag import api
from hsdag.base.kernels import bare, compiling_at_most, run_kernel, timed_compiling
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.bounds import makespan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.driver import COMPILING, compile_search


class Compiling(type(make_placer("met"))):  # type: ignore[misc]
    """Has two functions compiled, as numba tells of it."""

    def prepare(self, *_: object, **__: object) -> None:
        for _each in range(2):
            with event.trigger_event("numba:compile"):
                pass


def test_what_is_compiled_is_said_at_the_first_function() -> None:
    problem = problem_of(ScheduleProblem.from_arrays([[1.0, 2.0]], []))
    said: list[str] = []
    with timed_compiling(lambda: said.append(COMPILING)) as compiled_s:
        assert compile_search(Compiling(), problem, list, steps=1.0, takes_order=True)
    assert said == [COMPILING]
    assert compiled_s() > 0.0


def test_a_search_that_there_is_no_time_to_compile_is_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(ScheduleProblem.from_arrays([[1.0, 2.0]], []))
    kernel: Any = bare(lambda x: x + 1)
    placer = make_placer("met")
    monkeypatch.setattr(type(placer), "prepare", lambda *_, **__: kernel(1))
    with compiling_at_most(0.0):
        assert not compile_search(placer, problem, list, steps=1.0, takes_order=True)


@pytest.mark.parametrize(
    ("method", "steps", "is_compiled"), [("auto", 100, False), ("auto", 200, True), ("sa", 1, True)]
)
def test_what_few_plans_are_simulated_with_is_compiled_where_they_take_many_steps(
    method: str, steps: int, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(ScheduleProblem.from_arrays([[1.0, 2.0]], []))
    kernel: Any = bare(lambda x: x + 1)
    placer = make_placer(method, is_cheap=True)
    monkeypatch.setattr(type(placer), "prepare", lambda *_, **__: None)
    compile_search(placer, problem, lambda: run_kernel(kernel, steps, 1), steps=steps, takes_order=False)
    assert bool(kernel.signatures) is is_compiled


@pytest.mark.parametrize(("method", "are_bounded"), [("heft", False), ("best-device", False), ("sa", True)])
def test_every_two_of_many_ops_are_bounded_for_methods_of_many_plans_alone(
    method: str, are_bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((200, 2)), [(v, v + 2) for v in range(198)])
    between = Mock(return_value=np.zeros((202, 202)))
    monkeypatch.setattr(makespan, "between_all", between)
    api.solve(problem, method, max_evaluations=2)
    assert between.called is are_bounded


COLD = """
import sys
import numpy as np
from numba.core import event
from hsdag import api
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher

seen = []

class Listener(event.Listener):
    def on_start(self, _):
        seen.append("compiling")
    def on_end(self, _):
        pass

n = int(sys.argv[1])
rng = np.random.default_rng(0)
edges = [(int(rng.integers(0, v)), v) for v in range(1, n)]
problem = ScheduleProblem.from_arrays(rng.uniform(1, 2, (n, 2)), edges, link_latency_s=0.5)
with event.install_listener("numba:compile", Listener()):
    result = api.solve(problem, "heft", budget=600.0, watcher=Watcher(on_phase=seen.append))
searched = seen.index("searching")
print(result.value, seen[:searched].count("compiling"), seen.count("compiling"))
"""


def solved_cold(num_ops: int, cache: Path) -> list[float]:
    """The value that HEFT finds, and how many functions were compiled, before its search and in all."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    ran = subprocess.run([sys.executable, "-c", COLD, str(num_ops)], env=environment, capture_output=True, check=True)
    return [float(figure) for figure in ran.stdout.split()]


def test_the_first_heft_of_a_small_problem_compiles_nothing(tmp_path: Path) -> None:
    assert solved_cold(4, tmp_path)[1:] == [0, 0]


@pytest.mark.slow
def test_what_the_first_heft_of_a_large_problem_needs_is_compiled_before_its_search(tmp_path: Path) -> None:
    (cold_s, before, whole), warm = solved_cold(1500, tmp_path), solved_cold(1500, tmp_path)
    assert before == whole > 0
    assert warm == [cold_s, 0, 0]
