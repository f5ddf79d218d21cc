"""How searches of learned methods begin and end: with a policy of other problems, and where memory does not suffice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hsdag.base.errors import FileFormatError
from hsdag.methods.auto.auto import LISTS
from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.learned import base
from hsdag.methods.lists.rules import RulesOptions, RulesPlacer
from hsdag.methods.registry import begun_with, make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.driver import Watcher
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.learned.policies import write_small_policy

SEED = 3


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_policy(tmp_path_factory.mktemp("policy") / "policy.safetensors")


def test_auto_begins_with_the_plans_of_a_policy(policy: Path) -> None:
    problem = random_problem(3, 40, 3)
    plans = set(RulesPlacer(RulesOptions(rounds=4, initial=str(policy))).proposals(problem_of(problem), SEED))
    for initial, begins in ((str(policy), True), ("none", False)):
        recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(evaluations=60))
        changes = {"initial": initial, "without": ",".join((*LISTS, "cpsat"))}
        make_placer("auto", changes=changes, is_cheap=True).search(problem_of(problem), recorder, Limits(seed=SEED))
        assert (plans <= {event.plan for event in recorder.events}) is begins


def test_a_policy_of_another_method_is_refused_before_any_search(tmp_path: Path) -> None:
    policy = write_small_policy(tmp_path / "other.safetensors", method="placeto")
    with pytest.raises(FileFormatError, match="is a policy of method 'placeto', not of 'rules'"):
        make_placer("auto", changes=begun_with("auto", policy, {}))


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
    assert answer.value is not None


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("the simulator broke"), False),
    ],
)
def test_an_allocation_that_fails_ends_the_search_with_its_best_and_other_errors_are_not_hidden(
    error: Exception, is_memory: bool
) -> None:
    class Failing(ScheduleEvaluator):
        asked: list[Plan] = []  # noqa: RUF012

        def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
            if self.asked:
                raise error
            self.asked.extend(plans)
            return super().evaluate(plans)

    problem = random_problem(3, 14, 2)
    placer, evaluator = make_placer("gdp"), Failing(problem, Semantics())
    if not is_memory:
        with pytest.raises(RuntimeError, match="the simulator broke"):
            placer.search(problem_of(problem), evaluator)
        return
    result = placer.search(problem_of(problem), evaluator)
    assert result.note == "method 'gdp' is out of memory for 14 units"
    assert result.status is Status.FEASIBLE
    assert result.plan is not None


SEEN = 3 * 15
TRAIL = {"intermediate": "true", "sees": "false"}


@pytest.mark.parametrize(
    ("method", "changes", "expected"),
    [
        (
            "gdp",
            {"layers": "3", "width": "64"},
            4 * 1000 * (12 * 3 * 64 + 2 * (20 * 64 + 6 * 4 * 128) + (8 + SEEN) * 4 * 32),
        ),
        ("rnn", {"width": "64"}, 4 * (32 * 1000 * (1000 * 3 + 25 * 64 + SEEN * 4) + 160 * 64**2)),
        (
            "rnn",
            {"width": "64", "scoring": "additive", "sees": "false"},
            4 * (32 * 1000 * (1000 * 67 + 25 * 64) + 160 * 64**2),
        ),
        ("placeto", {"step": "300", **TRAIL}, 12 * 2**16 * (4 * (64 + 48) + 14 * 16) + 9e6 + 16 * 128_000),
        ("placeto", {"step": "7"}, 12 * 2**16 * (4 * (64 + 48) + 14 * 16) + 9e6 + 4 * SEEN * 4 * 32_000),
        ("placeto", {"groups": "10", **TRAIL}, 12 * 320 * (4 * (64 + 48) + 14 * 16) + 9 * 10**2 + 16 * 320),
    ],
)
def test_the_memory_of_training_is_that_of_what_it_keeps(method: str, changes: dict[str, str], expected: float) -> None:
    """A thousand units on four devices. Additive attention compares all pairs, Placeto knows all paths."""
    placer = make_placer(method, is_cheap=True, changes=changes)
    assert isinstance(placer, base.LearnedPlacer)
    assert placer.needed_bytes(problem_of(ScheduleProblem.from_arrays(np.ones((1000, 4)), []))) == expected
