"""MILP-SPLIT with several channels: annealing, windows and the bound, against brute force and by invariants."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.methods.exact import milp_split
from hsdag.methods.exact.milp_split import MilpSplitPlacer
from hsdag.methods.exact.modules import ModuleSolver
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.scoring.base import SearchStopped
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve
from tests.hsdag.methods.exact.exact_reference import BruteForce, random_problem


@pytest.fixture
def many_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph counts as one channel, however small; its bound takes little time."""
    monkeypatch.setattr(milp_split, "MOST_OPS_OF_A_SEGMENT", -1)
    monkeypatch.setattr(milp_split, "MODULE_S", 0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("many_channels")
@pytest.mark.parametrize("seed", range(12))
def test_windows_find_nothing_below_the_optimum_and_the_bound_is_not_above_it(seed: int) -> None:
    problem = random_problem(seed, 7, 2 + seed % 2)
    solution = solve(problem, MilpSplitPlacer(), SolveOptions("milp-split", budget_s=600.0))
    best_s = BruteForce(problem).makespan_s()
    assert solution.value_s is not None
    assert solution.value_s >= best_s * (1 - 1e-9)
    assert solution.lower_bound_s <= best_s * (1 + 1e-9)


def test_many_channels_are_annealed_to_less_than_any_list_schedule(many_channels: None) -> None:
    problem = random_problem(3, 60, 4)
    alone = [solve(problem, make_placer(m), SolveOptions(m)).value_s or np.inf for m in ("heft", "cpop", "etf")]
    solution = solve(problem, MilpSplitPlacer(), SolveOptions("milp-split", budget_s=2.0))
    assert solution.value_s is not None
    assert solution.value_s < 0.97 * min(alone)


def test_who_waits_for_a_module_can_be_stopped() -> None:
    def stop() -> None:
        raise SearchStopped

    with ModuleSolver(Limits(1.0, 1), 1, on_wait=stop) as solver:
        answer = solver.submit(random_problem(5, 60, 3, density=0.08), {})
        with pytest.raises(SearchStopped):
            answer()
