"""Min-cut of models under HETERO: launches are those of HETERO's submodels, in answers and in bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.commands.place.loaded_model import with_costs
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.coarsen import coarsen, placement_units
from hsdag.ir.graph.colocation import colocate, floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray, graph_from_edges
from hsdag.methods.cuts.alpha_expansion import best_cut
from hsdag.methods.cuts.cut_graph import BoundaryCosts, Launches
from hsdag.methods.cuts.mincut import SCALES, MincutPlacer
from hsdag.methods.incumbent import Result
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.objectives import THROUGHPUT
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.search.evaluators.hybrid import HybridEvaluator, HybridSchedule
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.ir.placement.random_models import random_model
from tests.hsdag.runtime.costs.plain_latency import plain_latency_s

pytestmark = pytest.mark.slow  # they compile what searches under HETERO run
SOME = settings().max_examples // 2


def random_costs(graph: ComputationGraph, num_devices: int, rng: np.random.Generator) -> ScheduleProblem:
    """Launches that weigh as much as ops, and ops of which some are much faster on one device than on another."""
    time_s = rng.random((graph.num_ops, num_devices)) * (1 + 3 * (rng.random((graph.num_ops, num_devices)) < 0.3))
    time_s[floating_ops(graph)] = 0.0
    size = num_devices, num_devices
    latency_s, bandwidth = rng.uniform(0.01, 0.1, size), rng.uniform(200.0, 2000.0, size)
    links: dict[str, Any] = {"link_latency_s": latency_s, "link_bandwidth_bytes_per_s": bandwidth}
    return ScheduleProblem.from_graph(graph, time_s, launch_s=rng.uniform(0.2, 2.0, num_devices), **links)


def problem_of_model(graph: ComputationGraph, costs: ScheduleProblem, *, chained: bool = False) -> Problem:
    constraints = colocate(graph)
    units = placement_units(graph) if chained else coarsen(graph, constraints.sets, constraints.edge_kept)
    shape = units.graph.num_ops, len(costs.launch_s)
    names = tuple(f"d{i}" for i in range(shape[1]))
    problem = Problem(units, names, np.ones(shape, dtype=np.bool_), semantics=Semantics(Execution.SEQUENTIAL))
    return replace(with_costs(problem, costs, np.full(shape[1], np.inf)), ops=HeteroCosts.of(graph, costs))


def random_problem(seed: int, num_ops: int, num_devices: int = 2) -> tuple[Problem, HeteroCosts]:
    """A model of OpenVINO's ops, or one whose ops are units of their own, in whatever order."""
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5:
        graph = graph_of(random_model(rng, num_ops))
    else:
        edges = [(u, v) for v in range(num_ops) for u in range(v) if rng.random() < 0.25]
        graph = graph_from_edges(["X"] * num_ops, edges, output_bytes=rng.integers(1, 100, num_ops).tolist())
    costs = random_costs(graph, num_devices, rng)
    return problem_of_model(graph, costs, chained=bool(rng.random() < 0.3)), HeteroCosts.of(graph, costs)


def search(problem: Problem, hetero: HeteroCosts) -> Result:
    assert problem.costs is not None
    never_asked = RecordingEvaluator(ScheduleEvaluator(problem.costs, problem.semantics), Budget())
    return MincutPlacer().search(problem, HybridEvaluator(problem, hetero, never_asked, HybridSchedule.simulated()))


def latencies_s(problem: Problem, hetero: HeteroCosts, placements: list[IntArray]) -> np.ndarray:
    return hetero.latency_s(problem.expand(np.stack(placements)))


def cuts(problem: Problem) -> list[IntArray]:
    """The cuts at every price of a boundary and of a launch."""
    assert problem.costs is not None
    charged = [BoundaryCosts.of(problem.costs, launches) for launches in (Launches.RUNS, Launches.TRANSFERS)]
    return [best_cut(costs.scaled(scale)) for costs, scale in itertools.product(charged, SCALES)]


@settings(max_examples=SOME)
@given(st.integers(0, 2**32), st.integers(3, 30))
def test_launches_are_counted_as_hetero_makes_submodels(seed: int, num_ops: int) -> None:
    """What is reported is HETERO's; no single device, and no cut at any price by itself, takes less."""
    problem, hetero = random_problem(seed, num_ops)
    result = search(problem, hetero)
    assert result.plan is not None
    device = problem.expand(result.plan.placement)
    submodel = hetero.collector.submodel_of(device)
    counted_s = plain_latency_s(problem.units.fine, submodel, device, hetero.costs)
    assert result.score == pytest.approx(counted_s)
    alone = [np.full(problem.num_units, d) for d in range(problem.num_devices)]
    assert result.score <= latencies_s(problem, hetero, alone + cuts(problem)).min() * (1 + 1e-12)
    assert result.lower_bound is not None
    assert result.lower_bound.value <= result.score


@settings(max_examples=SOME)
@given(st.integers(0, 2**32), st.integers(3, 9))
def test_the_bound_is_below_whatever_hetero_makes_of_any_placement(seed: int, num_ops: int) -> None:
    problem, hetero = random_problem(seed, num_ops)
    every = itertools.product(range(2), repeat=min(problem.num_units, 10))
    rest = np.zeros(max(problem.num_units - 10, 0), dtype=np.int64)
    result = search(problem, hetero)
    assert result.lower_bound is not None
    best_s = latencies_s(problem, hetero, [np.concatenate([choice, rest]).astype(np.int64) for choice in every]).min()
    assert result.lower_bound.value <= best_s


def test_chains_side_by_side_are_launched_once_each_however_their_ops_alternate() -> None:
    graph = graph_from_edges(["X"] * 8, [(v, v + 2) for v in range(6)])
    time_s = np.where(np.arange(8)[:, None] % 2 == np.arange(2), 1.0, 5.0)
    links: dict[str, Any] = {"link_latency_s": 1.0, "link_bandwidth_bytes_per_s": 1.0}
    costs = ScheduleProblem.from_graph(graph, time_s, launch_s=3.0, **links)
    result = search(problem_of_model(graph, costs), HeteroCosts.of(graph, costs))
    assert result.score == 8 * 1.0 + 2 * 3.0
    assert result.lower_bound is not None
    assert result.lower_bound.value == pytest.approx(result.score)


def test_moves_find_the_best_placement_where_every_cut_misses_it() -> None:
    missed = 0
    for seed in range(12):
        problem, hetero = random_problem(seed, 9)
        every = [np.array(each) for each in itertools.product(range(2), repeat=problem.num_units)]
        best_s = latencies_s(problem, hetero, every).min()
        missed += bool(latencies_s(problem, hetero, cuts(problem)).min() > best_s * (1 + 1e-9))
        assert search(problem, hetero).score == pytest.approx(best_s)
    assert missed > 1


@pytest.mark.parametrize("change", [{"objective": THROUGHPUT}, {"semantics": Semantics()}])
def test_neither_the_period_of_a_model_nor_work_conserving_execution_has_a_bound(change: dict[str, Any]) -> None:
    problem, hetero = random_problem(1, 9)
    assert search(replace(problem, **change), hetero).lower_bound is None
