"""Modules on workers: what comes too late is not waited for."""

from __future__ import annotations

import time

from hsdag.methods.exact.modules import ModuleSolver
from hsdag.methods.incumbent import Limits
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.workers.pool import Pool
from tests.hsdag.workers.here import Silent


def test_a_module_that_no_worker_solves_by_the_deadline_gets_the_longest_path() -> None:
    module = ScheduleProblem.from_arrays([[1.0, 2.0]] * 3, [(0, 1), (1, 2)])
    with Pool([Silent()]) as pool, ModuleSolver(Limits(), 1, deadline=time.monotonic(), pool=pool) as solver:
        answer = solver.submit(module, {}).result()
    assert (answer.bound_s, answer.device) == (3.0, None)
