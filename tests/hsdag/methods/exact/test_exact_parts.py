"""The parts of the exact methods: ticks, cuts, module identity, memory, batches, and the recursive bound."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
import pytest

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.exact.batches import BatchTable
from hsdag.methods.exact.cpsat import CpSatPlacer
from hsdag.methods.exact.formulation import Formulation, MemoryRule
from hsdag.methods.exact.milp import MilpModel
from hsdag.methods.exact.modules import (
    CutRules,
    ModuleSolver,
    canonical_order,
    edge_connected_components,
    identity,
    modules,
    split_bound_s,
)
from hsdag.methods.exact.solving import Ticks
from hsdag.methods.exact.windows import Schedule, WindowSolver, sweeps
from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator import Order, Semantics, simulate
from hsdag.scoring.base import Evaluator, Score, SearchStopped
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve
from tests.hsdag.methods.exact.exact_reference import BruteForce, random_problem


def stacked(num_modules: int, seed: int = 0) -> ScheduleProblem:
    """Identical modules of five ops that two results cross between."""
    rng = np.random.default_rng(seed)
    one = rng.integers(1, 9, (5, 2)).astype(float)
    edges = []
    for t in range(num_modules):
        b = 5 * t
        edges += [(b, b + 2), (b + 1, b + 2), (b + 2, b + 3), (b + 2, b + 4), (b, b + 3), (b + 1, b + 4)]
        edges += [(b - 2, b), (b - 1, b + 1)] if t else []
    return ScheduleProblem.from_arrays(np.tile(one, (num_modules, 1)), edges, output_bytes=1.0, link_latency_s=1.0)


def test_ticks_of_decimal_times_are_exact() -> None:
    ticks = Ticks.choose([np.array([0.25, 1.5, np.nan])], 100.0)
    assert ticks.is_exact
    assert ticks.down([0.25, 1.5]).tolist() == [25, 150]


def test_other_ticks_round_down() -> None:
    ticks = Ticks.choose([np.array([np.pi, 1 / 3])], 10.0)
    assert not ticks.is_exact
    assert np.all(ticks.seconds(ticks.down([np.pi, 1 / 3])) <= [np.pi, 1 / 3])


@pytest.mark.parametrize("k", [2, 3, 4])
def test_edge_connected_components_are_those_of_networkx(k: int) -> None:
    graph = nx.gnp_random_graph(14, 0.3, seed=k)
    label = edge_connected_components(14, list(graph.edges), k)
    found = {frozenset(np.flatnonzero(label == c).tolist()) for c in np.unique(label)}
    assert found == {frozenset(c) for c in nx.k_edge_components(graph, k)}


def test_stacked_modules_are_cut_where_they_are_stacked() -> None:
    parts = modules(Formulation(stacked(4)), CutRules(most_channels=2, usual_ops=5, most_ops=10))
    assert [sorted(part.tolist()) for part in parts] == [list(range(5 * t, 5 * t + 5)) for t in range(4)]


def test_edges_lead_forward_through_modules() -> None:
    problem = random_problem(5, 30, 2, density=0.1)
    module = np.empty(30, dtype=np.int64)
    for t, part in enumerate(modules(Formulation(problem), CutRules(usual_ops=6, most_ops=12))):
        module[part] = t
    assert np.all(module[problem.edge_src] <= module[problem.edge_dst])


def test_a_module_with_its_ops_in_another_order_is_the_same_module() -> None:
    problem = random_problem(4, 8, 2)
    label = np.random.default_rng(0).permutation(8)
    other = ScheduleProblem.from_arrays(
        problem.time_s[np.argsort(label)],
        np.stack([label[problem.edge_src], label[problem.edge_dst]], axis=1),
        output_bytes=problem.output_bytes[np.argsort(label)],
        link_latency_s=problem.link_latency_s,
        link_bandwidth_bytes_per_s=problem.link_bandwidth_bytes_per_s,
        op_overhead_s=problem.op_overhead_s,
    )
    keys = [identity(p, {}, canonical_order(p, {})) for p in (problem, other)]
    assert keys[0] == keys[1]


def test_identical_modules_are_solved_once() -> None:
    problem = stacked(6)
    parts = [np.arange(5 * t, 5 * t + 5) for t in range(6)]
    with ModuleSolver(Limits(600.0, 1), 1) as solver:
        split_bound_s(Formulation(problem), parts, solver)
    assert solver.num_solved == 5  # the module, and what two inputs and two outputs reach of it


@pytest.mark.parametrize("seed", range(8))
def test_the_recursive_bound_is_no_larger_than_the_optimum(seed: int) -> None:
    problem = random_problem(2 * seed, 7, 2)
    f = Formulation(problem)
    parts = modules(f, CutRules(most_channels=3, usual_ops=2, most_ops=4))
    with ModuleSolver(Limits(600.0, 1), 1) as solver:
        bound_s = split_bound_s(f, parts, solver)
    assert 0 < bound_s <= BruteForce(problem).makespan_s() * (1 + 1e-9)


def swept_twice(num_threads: int) -> tuple[Schedule, Schedule]:
    """A plan of a random problem, each op on its fastest device, and what windows make of it."""
    problem = random_problem(3, 40, 3, density=0.1)
    device = np.nanargmin(problem.time_s, axis=1)
    in_order = np.argsort(problem.topological_order)

    def judged(device: IntArray, start_s: FloatArray) -> Schedule:
        ranks = np.argsort(np.lexsort((in_order, start_s)))
        run = simulate(problem, device, Semantics(order=Order.PRIORITY), ranks)
        return Schedule(device, run.start_s, run.makespan_s)

    first = plan = judged(device, in_order.astype(float))
    with WindowSolver(Formulation(problem), 0.01, np.inf, num_threads) as solver:
        for windows in (sweeps(plan, 12)[0::2], sweeps(plan, 12)[1::2]):
            plan = solver.improve(plan, windows, judged) or plan
    return first, plan


def test_windows_solved_side_by_side_make_a_plan_better() -> None:
    first, plan = swept_twice(2)
    assert plan.makespan_s < 0.9 * first.makespan_s


def test_windows_do_not_depend_on_the_number_of_threads() -> None:
    one, two = swept_twice(1)[1], swept_twice(2)[1]
    assert np.array_equal(one.device, two.device)
    assert one.makespan_s == two.makespan_s


def test_a_module_that_comes_after_the_deadline_is_bounded_by_its_longest_path() -> None:
    chain = ScheduleProblem.from_arrays([[3.0, 5.0], [4.0, 2.0], [1.0, 1.0]], [(0, 1)], link_latency_s=7.0)
    with ModuleSolver(Limits(600.0, 1), 1, deadline=-np.inf) as solver:
        answer = solver.submit(chain, {}).result()
    assert answer.device is None
    assert answer.bound_s == 5.0  # 3 and 2, without the transfer


def test_memory_is_kept_and_the_optimum_under_it_proven() -> None:
    problem = ScheduleProblem.from_arrays(
        [[1.0, 5.0], [1.0, 5.0], [1.0, 5.0]], [], weight_bytes=10.0, memory_bytes=[20.0, 100.0]
    )
    placer = CpSatPlacer()
    solution = solve(problem, placer, SolveOptions("cpsat", budget_s=600.0))
    assert solution.value_s == 5.0
    assert solution.lower_bound_s == pytest.approx(5.0)
    assert solution.run is not None
    assert np.all(solution.run.peak_memory_bytes <= problem.memory_bytes)


def test_the_milp_refuses_a_memory_rule_that_is_not_linear() -> None:
    problem = ScheduleProblem.from_arrays([[1.0]], [], memory_bytes=1.0)
    with pytest.raises(ValueError, match="'running' and 'reserved', not 'peak'"):
        MilpModel(Formulation(problem, MemoryRule.PEAK), 1.0)


def test_a_batch_table_says_what_is_wrong_with_its_sizes() -> None:
    with pytest.raises(ValueError, match="must rise from 1 to 4"):
        BatchTable(4, (2, 8), np.ones((1, 1, 2)))


@pytest.mark.parametrize("method", ["cpsat", "milp", "milp-split"])
def test_the_order_of_an_answer_gives_its_makespan(method: str) -> None:
    problem = random_problem(8, 9, 3)
    placer = make_placer(method)
    options = SolveOptions(method, semantics=Semantics(order=Order.PRIORITY), budget_s=600.0)
    solution = solve(problem, placer, options)
    assert solution.device is not None
    assert solution.priority is not None
    again = simulate(problem, solution.device, Semantics(order=Order.PRIORITY), solution.priority)
    assert again.makespan_s == solution.value_s


class StopsAfter(Evaluator):
    """Ends the search after some evaluations."""

    def __init__(self, problem: ScheduleProblem, left: int) -> None:
        self.left, units = left, problem_of(problem).units.partition.labels
        self._inner = ScheduleEvaluator(problem, Semantics(), unit_of_op=units)

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        self.left -= len(plans)
        if self.left < 0:
            raise SearchStopped
        return self._inner.evaluate(plans)


@pytest.mark.parametrize("method", ["cpsat", "milp", "milp-split"])
def test_the_evaluator_can_stop_a_search_at_any_moment(method: str) -> None:
    problem = random_problem(8, 30, 3, density=0.1)
    result = make_placer(method).search(problem_of(problem), StopsAfter(problem, 22))
    assert result.status is Status.TIME_LIMIT
    assert result.plan is not None


@pytest.mark.parametrize("method", ["cpsat", "milp", "milp-split"])
def test_unknown_costs_are_refused_with_the_name_of_the_method(method: str) -> None:
    units = problem_of(random_problem(1, 3, 2))
    blind = type(units)(units.units, units.devices, units.supported, units.objective, None)
    with pytest.raises(OptionError, match=f"method '{method}' needs"):
        make_placer(method).search(blind, ScheduleEvaluator(random_problem(1, 3, 2), Semantics()))
