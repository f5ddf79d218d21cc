"""The HSDAG placer finds good placements in few evaluations, repeatably, and resumes where it was killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hsdag.ir.errors import SearchError
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.methods.incumbent import Limits
from hsdag.methods.learned.hsdag.network import HsdagConfig
from hsdag.methods.learned.hsdag.placer import HsdagPlacer, feature_groups
from hsdag.methods.learned.policy import Exploring
from hsdag.runtime.problem import units
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.scoring.base import Evaluator, Score, SearchStopped
from hsdag.scoring.schedule import ScheduleEvaluator

SMALL = HsdagConfig(hidden=32)
WITH_DROPOUT = replace(SMALL, dropout=0.2, steps=2, updates=4)
PAPER = replace(HsdagConfig.paper(), hidden=16, updates=3, steps=4, plans_per_update=4)


class Store:
    """A checkpoint in memory that keeps every state."""

    def __init__(self) -> None:
        self.states: list[tuple[dict[str, torch.Tensor], dict[str, Any]]] = []

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        self.states.append(({k: v.clone() for k, v in tensors.items()}, dict(state)))

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        return self.states[-1] if self.states else None


class Recorder(Evaluator):
    """Simulated latencies; remembers what it was asked, and stops after a number of evaluations."""

    def __init__(self, inner: Evaluator, limit: int = 10_000) -> None:
        self.inner, self.limit = inner, limit
        self.asked: list[tuple[int, ...]] = []
        self.latencies_s: list[float] = []

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        results = []
        for plan in plans:
            if len(self.asked) >= self.limit:
                raise SearchStopped
            self.asked.append(tuple(plan.placement.tolist()))
            results += self.inner.evaluate([plan])
            self.latencies_s.append(results[-1].value)
        return results


def problem_of(rates: Sequence[Sequence[float]], cut_s: float) -> tuple[Problem, ScheduleEvaluator]:
    """A chain of blocks with shortcuts; ``rates`` are mean times per device of early and late units."""
    edges = [(v, v + 1) for v in range(47)] + [(v, v + 3) for v in range(0, 44, 4)]
    shapes = [(1, 8, 64, 64)] * 24 + [(1, 64, 8, 8)] * 24
    graph = graph_from_edges(["Convolution", "Relu", "Add", "Pool"] * 12, edges, shapes=shapes)
    weight = np.asarray([1.7, 0.3, 0.3, 1.7] * 12)
    time_s = np.repeat(np.asarray(rates, dtype=np.float64), 24, axis=0) * weight[:, None]
    num_devices = time_s.shape[1]
    link = np.full((num_devices, num_devices), cut_s)
    links: dict[str, Any] = {"launch_s": cut_s, "link_latency_s": link, "link_bandwidth_bytes_per_s": 1e12}
    costs = ScheduleProblem.from_graph(graph, time_s, **links)
    table = np.ones((48, num_devices), dtype=np.bool_)
    units = CoarseGraph(graph, Partition.identity(48), graph)
    problem = Problem(units, tuple(f"D{d}" for d in range(num_devices)), table)
    return problem, ScheduleEvaluator(costs, Semantics(Execution.SEQUENTIAL))


def rates_of(fast: int) -> list[list[float]]:
    """Device ``fast`` of two is twice as fast as the other on every unit."""
    return [[1e-3 if device == fast else 2e-3 for device in range(2)]] * 2


def run(config: HsdagConfig, limit: int = 10_000, store: Store | None = None, seed: int = 1, fast: int = 0) -> Recorder:
    problem, inner = problem_of(rates_of(fast), 2e-4)
    recorder = Recorder(inner, limit)
    HsdagPlacer(config).search(problem, recorder, Limits(seed=seed), store)
    return recorder


@pytest.mark.parametrize("config", [replace(SMALL, updates=5), WITH_DROPOUT, PAPER])
def test_a_killed_search_resumes_as_if_it_had_not_been_killed(
    config: HsdagConfig,
) -> None:
    whole = run(config).asked
    assert run(config, 10, seed=2).asked != whole[:10]
    for limit in (1, len(whole) // 2):
        store = Store()
        run(config, limit, store)
        resumed = run(config, store=store).asked
        assert 0 < len(resumed) <= len(whole)
        assert resumed == whole[len(whole) - len(resumed) :]
        assert len(resumed) >= len(whole) - limit


def test_resuming_another_configuration_is_refused() -> None:
    store = Store()
    run(SMALL, 20, store)
    with pytest.raises(SearchError, match=r"other options of hsdag \(epochs\)"):
        run(replace(SMALL, epochs=2), store=store)


def test_costs_that_are_known_go_straight_to_the_logits_by_a_learned_weight() -> None:
    problem, inner = problem_of(rates_of(0), 2e-4)
    placer = HsdagPlacer(replace(SMALL, updates=4))
    placer.search(replace(problem, costs=inner.problem), inner)
    assert placer.trainer is not None
    assert dict(placer.trainer.policy.network.named_parameters())["slowness"].item() > 0.003
    HsdagPlacer(replace(SMALL, updates=1, costs=False)).search(replace(problem, costs=inner.problem), inner)


def test_ops_that_take_no_time_are_placed() -> None:
    problem = units.problem_of(ScheduleProblem.from_arrays(np.zeros((3, 2)), [(0, 1)], launch_s=[1.0, 1.0]))
    generator = torch.Generator().manual_seed(0)
    (draw,) = HsdagPlacer(SMALL).policy(problem, generator).draw(1, Exploring(0.0, 1.0), generator)
    assert set(draw.plan.placement.tolist()) <= {0, 1}


def test_each_ablation_of_table_3_takes_its_features_away() -> None:
    everything = set(feature_groups(SMALL))
    assert everything - set(feature_groups(replace(SMALL, output_shape=False))) == {"output_shape"}
    assert everything - set(feature_groups(replace(SMALL, node_id=False))) == {"positional"}
    structure = everything - set(feature_groups(replace(SMALL, structure=False)))
    assert structure == {"in_degree", "out_degree", "fractal"}


@pytest.mark.parametrize(("fast", "seed"), [(0, 1), (1, 2)])
def test_in_80_evaluations_the_faster_device_is_believed_in_and_a_split_comes_within_3_percent(
    fast: int, seed: int
) -> None:
    problem, inner = problem_of(rates_of(fast), 2e-4)
    placer, recorder = HsdagPlacer(HsdagConfig()), Recorder(inner, 80)
    placer.search(problem, recorder, Limits(seed=seed))
    assert placer.trainer is not None
    assert np.mean(placer.trainer.policy.best(torch.Generator()).plan.placement == fast) > 0.9
    splits = [s for plan, s in zip(recorder.asked, recorder.latencies_s, strict=True) if len(set(plan)) > 1]
    assert min(splits) <= 1.03 * recorder.latencies_s[fast]  # 1.39 and more where nothing is learned
