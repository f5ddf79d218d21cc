"""Modules on workers: what comes too late is not waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hsdag.fleet.job import Exchange, Job, JobLost
from hsdag.fleet.pool import Host, Pool
from hsdag.placers.exact.module_solving import ModuleSolver
from hsdag.placers.incumbent import Limits
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class NeverDone(Host):
    """Computes until nobody needs the answer."""

    name = "never done"

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        while not is_over():
            time.sleep(0.01)
        raise JobLost("nobody needs it")

    def revive(self) -> bool:
        return True


def test_a_module_that_no_worker_solves_by_the_deadline_gets_the_longest_path() -> None:
    module = ScheduleProblem.from_arrays([[1.0, 2.0]] * 3, [(0, 1), (1, 2)])
    with Pool([NeverDone()]) as pool, ModuleSolver(Limits(), 1, deadline=time.monotonic(), pool=pool) as solver:
        answer = solver.submit(module, {}).result()
    assert (answer.bound_s, answer.device) == (3.0, None)
