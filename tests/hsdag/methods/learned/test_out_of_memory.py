"""Too large a graph for a method's memory is a result with a sentence, not a crash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hsdag.methods.incumbent import Status
from hsdag.methods.learned import base
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.base import Score
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from tests.hsdag.methods.exact.exact_reference import random_problem


@pytest.mark.parametrize("method", ["placeto", "gdp", "rnn"])
def test_a_graph_that_would_not_fit_is_named_before_anything_is_trained(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "usable_memory_bytes", lambda: 1000.0)
    said: list[str] = []
    problem = random_problem(3, 14, 2)
    options = SolveOptions(method, budget_s=5.0)
    answer = solve(problem, options.placer(), options, Watcher(on_phase=said.append))
    reasons = [line for line in said if "out of memory" in line]
    assert reasons == [line for line in reasons if line.startswith(f"method '{method}' is out of memory for 14 units")]
    assert len(reasons) == 1
    assert reasons[0].endswith("and 1e-06 GB are usable")
    assert answer.value_s is not None


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")]
)
def test_an_allocation_that_fails_ends_the_search_with_its_best(error: Exception) -> None:
    problem = random_problem(3, 14, 2)

    class Failing(ScheduleEvaluator):
        asked: list[Plan] = []  # noqa: RUF012

        def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
            if self.asked:
                raise error
            self.asked.extend(plans)
            return super().evaluate(plans)

    result = make_placer("gdp", changes={"begins_taught": "false"}).search(
        problem_of(problem), Failing(problem, problem_of(problem).semantics)
    )
    assert result.note == "method 'gdp' is out of memory for 14 units"
    assert result.status is Status.FEASIBLE
    assert result.plan is not None


def test_other_errors_are_not_hidden() -> None:
    class Broken(ScheduleEvaluator):
        def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
            raise RuntimeError(f"the simulator broke on {len(plans)} plans")

    problem = random_problem(3, 14, 2)
    with pytest.raises(RuntimeError, match="the simulator broke"):
        make_placer("gdp").search(problem_of(problem), Broken(problem, problem_of(problem).semantics))


def needed(method: str, num_ops: int, preset: str = "default", **changes: str) -> float:
    placer = make_placer(method, preset, is_cheap=True, changes=changes)
    assert isinstance(placer, base.LearnedPlacer)
    return placer.needed_bytes(problem_of(ScheduleProblem.from_arrays(np.ones((num_ops, 4)), [])))


def test_memory_grows_as_the_methods_do() -> None:
    """Additive attention compares all pairs of units; segments bound GDP's pairs; Placeto knows all paths."""
    rnn = [needed("rnn", n, "paper") for n in (1000, 2000)]
    assert rnn[0] > 16e9
    assert rnn[1] / rnn[0] == pytest.approx(4.0, rel=0.05)
    assert needed("rnn", 1000) < 2e9
    assert needed("gdp", 2000) == pytest.approx(2 * needed("gdp", 1000), rel=0.01)
    assert needed("placeto", 8000, "paper") / needed("placeto", 4000, "paper") > 3.0
    assert needed("placeto", 1000, intermediate="true") > needed("placeto", 1000, intermediate="true", step="500")
