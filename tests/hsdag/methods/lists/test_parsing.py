"""The parsing network that was learned on other problems: what it reads, what it learns, and what it contracts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.lists.parsing import (
    EDGE_FEATURES,
    LIMITS,
    Layer,
    edge_features,
    edge_inputs,
    edge_scores,
    groups_of,
    layer_weights,
    parsing_layers,
)
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.tables import Tables, levels_of, tables_of
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.training.parsing import taught_parsing
from hsdag.training.problems import TrainingProblem
from tests.hsdag.methods.exact.exact_reference import random_problem


def features(problem: ScheduleProblem) -> FloatArray:
    tables = tables_of(problem)
    return edge_features(tables, levels_of(tables))


def test_features_have_no_unit_and_do_not_depend_on_the_order_of_devices() -> None:
    problem = random_problem(5, 20, 3, real=True)
    slower = replace(
        problem,
        time_s=7.0 * problem.time_s[:, ::-1],
        link_latency_s=7.0 * problem.link_latency_s[::-1, ::-1],
        link_bandwidth_bytes_per_s=problem.link_bandwidth_bytes_per_s[::-1, ::-1] / 7.0,
    )
    assert_allclose(features(problem), features(slower), rtol=1e-6, atol=1e-9)


def test_features_of_a_diamond_by_hand() -> None:
    diamond = ScheduleProblem.from_arrays(
        [[2.0, 2.0]] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], output_bytes=[4.0, 2.0, 6.0, 0.0],
        link_bandwidth_bytes_per_s=1.0,
    )  # fmt: skip
    found = {name: column.tolist() for name, column in zip(EDGE_FEATURES, features(diamond).T, strict=True)}
    assert_allclose(found["transfer"], np.log1p([2.0, 2.0, 1.0, 3.0]))  # a mean op takes 2 s
    assert_allclose(found["slack to the longest path, as a share of it"], [4 / 16, 0, 4 / 16, 0], atol=1e-9)
    assert_allclose(found["way over the edge to its consumer, longer than over the other inputs"][2:], [-2.0, 2.0])
    assert_allclose(found["way over the edge to the end, longer than over the other outputs"][:2], [-2.0, 2.0])
    assert_allclose(found["share of its consumer's input"], [1.0, 1.0, 0.25, 0.75])


def by_hand(t: Tables, score: FloatArray, limit: float) -> list[set[int]]:
    """The groups under a limit of work, by sets."""
    groups = [{v} for v in range(len(t.time_s))]
    source = np.repeat(np.arange(len(groups)), np.diff(t.out_first))
    for e in sorted(range(len(score)), key=lambda e: (-score[e], -t.out_bytes[e], e)):
        one, other = (next(g for g in groups if v in g) for v in (source[e], t.out_op[e]))
        joined = one | other
        fits = t.time_s[list(joined)].mean(axis=1).sum() <= limit * t.time_s.mean(axis=1).sum() / t.time_s.shape[1]
        if score[e] >= 0.5 and one is not other and fits and t.weight_bytes[list(joined)].sum() <= t.memory_bytes.min():
            groups = [g for g in groups if g not in (one, other)] + [joined]
    return groups


@pytest.mark.parametrize("seed", range(6))
def test_edges_are_contracted_by_score_within_work_and_memory(seed: int) -> None:
    problem = random_problem(seed, 24, 2, real=True, lacks=0.0)
    rng = np.random.default_rng(seed)
    tables = tables_of(replace(problem, weight_bytes=rng.random(24), memory_bytes=np.full(2, 3.0)))
    score = rng.random(len(tables.out_op))
    for limit, labels in zip(LIMITS, groups_of(tables, score), strict=True):
        found = {frozenset(np.flatnonzero(labels == g).tolist()) for g in labels}
        assert found == {frozenset(g) for g in by_hand(tables, score, limit)}


def taught(seed: int) -> TrainingProblem:
    """A chain of ops whose teacher changes the device behind small results alone."""
    rng = np.random.default_rng(seed)
    size = rng.choice([0.1, 9.0], 40)
    costs = ScheduleProblem.from_arrays(
        rng.uniform(0.5, 2.0, (40, 1)).repeat(2, axis=1), [(v, v + 1) for v in range(39)], output_bytes=size,
        link_bandwidth_bytes_per_s=1.0,
    )  # fmt: skip
    place = np.concatenate([[0], np.cumsum(size[:-1] < 1.0) % 2])
    return TrainingProblem(costs, ScheduleEvaluator(costs, Semantics()), (Plan(place),))


@pytest.mark.parametrize(("steps", "least", "most"), [(300, 0.95, 1.0), (0, 0.0, 0.9)])
def test_the_network_learns_which_ends_the_teacher_keeps_together(steps: int, least: float, most: float) -> None:
    layers = taught_parsing([taught(seed) for seed in range(4)], 0, steps=steps)
    unseen = taught(9)
    tables = tables_of(unseen.costs)
    place = unseen.experts[0].placement
    score = edge_scores(layers, edge_inputs(tables, levels_of(tables)))
    assert least <= np.mean((score > 0.5) == (place[:-1] == place[1:])) <= most


def test_layers_come_back_from_a_file_in_their_order() -> None:
    rng = np.random.default_rng(0)
    layers = [Layer(rng.normal(size=(3, 2)), rng.normal(size=2)), Layer(rng.normal(size=(2, 1)), rng.normal(size=1))]
    again = parsing_layers({**dict(reversed(layer_weights(layers).items())), "rules": np.zeros(1)})
    x = rng.normal(size=(5, 3))
    by_hand = 1 / (
        1 + np.exp(-(np.maximum(x @ layers[0].weight + layers[0].bias, 0) @ layers[1].weight)[:, 0] - layers[1].bias)
    )
    assert_allclose(edge_scores(again, x), by_hand)
