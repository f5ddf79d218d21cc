"""HSDAG: groups, the policy over them, and its placer, which is repeatable and resumes where it was killed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.base.errors import SearchError
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.methods.incumbent import Limits
from hsdag.methods.learned.hsdag.groups import Groups, Parse, Topology
from hsdag.methods.learned.hsdag.network import (
    GroupNetwork,
    HsdagConfig,
    Situation,
    View,
    dropout,
    nominate,
    parse_of,
    pooled_embeddings,
)
from hsdag.methods.learned.hsdag.placer import GroupPolicy, HsdagPlacer, feature_groups
from hsdag.methods.learned.networks import standardise, uniform_costs
from hsdag.methods.learned.order import log_p_in_turn
from hsdag.methods.learned.policy import Aim, Exploring, Rollout, clipped, log_p_of
from hsdag.runtime.problem import units
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.search.evaluators.base import Evaluator, Score, SearchStopped
from hsdag.search.evaluators.schedule import ScheduleEvaluator

SMALL = HsdagConfig(hidden=16, score_bias=0.0)


def chain(num_units: int = 20, supported: BoolArray | None = None) -> Problem:
    graph = graph_from_edges(["Relu"] * num_units, [(v, v + 1) for v in range(num_units - 1)])
    table = np.ones((num_units, 2), dtype=np.bool_) if supported is None else supported
    devices = tuple(f"D{d}" for d in range(table.shape[1]))
    return Problem(CoarseGraph(graph, Partition.identity(num_units), graph), devices, table)


def policy_for(problem: Problem, config: HsdagConfig = SMALL) -> GroupPolicy:
    x = torch.randn(problem.num_units, 6, generator=torch.Generator().manual_seed(7))
    graph = problem.units.graph
    topology = Topology.from_edges(graph.num_ops, graph.edge_src, graph.edge_dst)
    network = GroupNetwork(x, topology, problem.supported, config, torch.Generator().manual_seed(3))
    return GroupPolicy(network, config, uniform_costs(problem))


def drawn(policy: GroupPolicy, count: int = 1, seed: int = 0) -> list[Rollout]:
    return policy.draw(count, Exploring(), torch.Generator().manual_seed(seed))


def mean_cuts(draws: Sequence[Rollout]) -> float:
    """Cuts of a chain, as a mean over draws."""
    return float(np.mean([np.count_nonzero(np.diff(each.plan.placement)) for each in draws]))


def test_where_costs_are_unknown_plans_have_few_cuts_before_anything_is_learned_and_colder_ones_fewer() -> None:
    begun = HsdagPlacer(SMALL).policy(chain(60), torch.Generator().manual_seed(3))
    draws = drawn(begun, 90)
    untaught = mean_cuts(drawn(policy_for(chain(60)), 90))
    hot, cool, cold = (mean_cuts(draws[30 * k : 30 * k + 30]) for k in range(3))
    assert 0.5 * untaught > hot > cool > cold

    network = begun.network
    assert isinstance(network, GroupNetwork)
    with torch.no_grad():
        network.seen.zero_()
    assert mean_cuts(drawn(begun, 90)[:30]) == pytest.approx(untaught, rel=0.2)


def test_an_untrained_draw_takes_all_devices_and_all_fates_of_edges_to_be_equally_likely() -> None:
    draw = drawn(policy_for(chain()))[0].record
    decided = draw.episode.able.any(axis=1)
    assert decided.sum() == draw.parse.partition.num_groups
    assert draw.episode.log_p[decided, 1] == pytest.approx(-math.log(2))
    assert draw.edges.numpy() == pytest.approx(-math.log(2))
    assert len(draw.edges) == len(draw.parse.nominated)


def test_the_units_of_a_group_share_the_device_that_its_first_one_chose() -> None:
    for rollout in drawn(policy_for(chain()), 5):
        labels, placement = rollout.record.parse.partition.labels, rollout.plan.placement
        assert all(len(set(placement[labels == g])) == 1 for g in set(labels))
        assert len(set(placement)) == 2


def trained_a_little(config: HsdagConfig) -> GroupPolicy:
    policy = policy_for(chain(), config)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy


def expected_loss(policy: GroupPolicy, rollouts: list[Rollout], weights: torch.Tensor, aim: Aim) -> torch.Tensor:
    """What ``GroupPolicy.loss`` computes, by log-probabilities that torch differentiates, draw by draw."""
    parts: list[list[torch.Tensor]] = [[], [], []]
    for rollout, weight in zip(rollouts, weights, strict=True):
        draw, network = rollout.record, policy.network
        view = network.view(draw.situation)
        groups = Groups.of([draw.parse])
        pooled, edges, of_edges = network.embed(view, groups)
        order, ready = (torch.from_numpy(each)[None] for each in (draw.episode.order, draw.episode.ready))
        select = (policy._urgency + network.urgency(view)).double()
        selected = [each[0] for each in log_p_in_turn(select[order], ready.gather(1, order))]
        decided = draw.episode.able.any(axis=1)
        row = groups.distinct[torch.from_numpy(draw.parse.partition.labels[draw.episode.order[decided]])]
        seen, able, home = (torch.from_numpy(getattr(draw.episode, n)[decided]) for n in ("features", "able", "home"))
        logits = network.logits(pooled, groups)[row] + (seen * network.weights(pooled)[row][:, None]).sum(dim=2)
        placed = log_p_of(logits.masked_fill(~able, -torch.inf), home)
        before = [
            torch.from_numpy(draw.episode.log_p[:, 0]),
            torch.from_numpy(draw.episode.log_p[decided, 1]),
            draw.edges,
        ]
        for (log_p, entropy), was in zip((selected, placed, (edges, of_edges)), before, strict=True):
            gain = clipped(log_p, was, torch.full(log_p.shape, float(weight)), aim.clip)
            for column, each in zip(parts, (gain, entropy, log_p), strict=True):
                column.append(each.double())
    gain, entropy, log_p = (torch.cat(column) for column in parts)
    return -gain.mean() - aim.entropy * entropy.mean()


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, dropout=0.5, steps=2)])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_the_gradient_is_that_of_the_weighted_log_probabilities_of_all_decisions(
    config: HsdagConfig, clip: float | None
) -> None:
    policy = trained_a_little(config)
    rollouts = policy.draw(6, Exploring(0.3, 1.5), torch.Generator().manual_seed(0))
    weights, aim = torch.linspace(-1.0, 2.0, 6), Aim(clip, 0.1, 1.0)
    found = {}
    for name, loss in (("own", policy.loss), ("expected", lambda *of: expected_loss(policy, *of))):
        policy.network.zero_grad()
        loss(rollouts, weights, aim).backward()  # type: ignore[no-untyped-call]
        found[name] = torch.cat([p.grad.flatten() for p in policy.network.parameters() if p.grad is not None])
    torch.testing.assert_close(found["own"], found["expected"], rtol=1e-3, atol=1e-6)
    assert found["own"].abs().max() > 1e-3


def test_draws_have_the_probability_that_the_network_gives_them() -> None:
    """A narrow range of importance weights then cuts nothing off."""
    policy = trained_a_little(SMALL)
    for exploring, is_alike in ((Exploring(), True), (Exploring(heat=2.0), False)):
        rollouts = policy.draw(4, exploring, torch.Generator().manual_seed(0))
        slopes = []
        for clip in (None, 1e-3):
            policy.network.zero_grad()
            policy.loss(rollouts, torch.tensor([1.0, 2.0, -1.0, 3.0]), Aim(clip, 0.0, 1.0)).backward()  # type: ignore[no-untyped-call]
            slopes.append(torch.cat([p.grad.flatten() for p in policy.network.parameters() if p.grad is not None]))
        assert torch.allclose(slopes[0], slopes[1], rtol=1e-2, atol=1e-5) == is_alike


def test_a_policy_that_stagnates_gives_way_to_another() -> None:
    problem, inner = problem_of(0)
    placer = HsdagPlacer(replace(SMALLER, stagnation=3, updates=40))
    drawn_by = set()

    class Noting(Measured):
        def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
            drawn_by.add(id(placer.trainer))
            return super().evaluate(plans)

    placer.search(problem, Noting(inner, 400), Limits(seed=1))
    assert len(drawn_by) > 1


def test_dropout_drops_the_asked_share_and_keeps_the_mean() -> None:
    dropped = dropout(0.2, seed=5)(torch.ones(100_000))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.01)


def test_the_next_state_adds_the_embedding_of_each_units_group() -> None:
    network = policy_for(chain(), replace(SMALL, normalise=False, sampled_parsing=False)).network
    view = network.view(Situation())
    parse = network.parse(view)[0]
    state = network.next_state(view, parse)
    z = view.z.detach()
    for g in range(parse.partition.num_groups):
        members = parse.partition.labels == g
        weight = 0.5  # untrained score, and the weight of a unit alone
        assert torch.allclose(state[members], z[members] + weight * z[members].mean(dim=0), atol=1e-5)
    assert not state.requires_grad


def test_standardised_columns_have_no_mean_and_unit_variance() -> None:
    x = standardise(np.random.default_rng(0).normal(5.0, 3.0, (500, 2)))
    assert x.mean(dim=0).abs().max().item() < 0.01
    assert torch.allclose(x.var(dim=0), torch.ones(2), atol=0.05)
    assert standardise(np.full((4, 1), 3.0)).tolist() == [[0.0]] * 4


def test_the_entropy_of_parsing_is_that_of_keeping_each_nominated_edge() -> None:
    network = policy_for(chain()).network
    view = network.view(Situation())
    parse = network.parse(view)[0]
    logits = torch.linspace(-3.0, 2.0, len(view.score_logits))
    _, _, entropy = network.embed(View(view.z, logits), Groups.of([parse]))
    p = torch.sigmoid(logits)[torch.from_numpy(parse.nominated)]
    torch.testing.assert_close(entropy, -(p * p.log() + (1 - p) * (1 - p).log()))


@pytest.mark.parametrize("bias", [-2.0, 2.0])
def test_a_nominated_edge_is_kept_with_probability_equal_to_its_score(bias: float) -> None:
    network = policy_for(chain(), replace(SMALL, score_bias=bias, score_range=None)).network
    view = network.view(Situation())
    kept = np.mean([parse.kept.mean() for parse in network.parse(view, 200, torch.Generator().manual_seed(0))])
    assert kept == pytest.approx(1.0 / (1.0 + math.exp(-bias)), abs=0.02)
    assert network.parse(view)[0].kept.all() == (bias > 0.0)


def all_kept(topology: Topology, scores: FloatArray) -> Parse:
    nominated = nominate(topology, scores)
    return parse_of(topology, nominated, scores, np.ones(len(nominated), dtype=np.bool_))


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 25), st.integers(0, 10_000))
def test_groups_are_the_components_of_every_nodes_best_edge(num_nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = Topology.from_edges(num_nodes, *rng.integers(0, num_nodes, (2, 2 * num_nodes)))
    scores = 0.5 + 0.5 * rng.permutation(len(topology.left)) / max(len(topology.left), 1) + 1e-9
    expected = nx.Graph()
    expected.add_nodes_from(range(num_nodes))
    for v in range(num_nodes):
        incident = [e for e in range(len(topology.left)) if v in (topology.left[e], topology.right[e])]
        if incident:
            best = max(incident, key=lambda e: scores[e])
            expected.add_edge(int(topology.left[best]), int(topology.right[best]))
    groups = all_kept(topology, scores).partition
    found = {frozenset(np.flatnonzero(groups.labels == g).tolist()) for g in range(groups.num_groups)}
    assert found == {frozenset(c) for c in nx.connected_components(expected)}
    edges = nominate(topology, np.full(len(topology.left), 0.5))  # ties go by rank, so that no circle is nominated
    assert not len(edges) or nx.is_forest(nx.Graph(list(zip(topology.left[edges], topology.right[edges], strict=True))))


def test_parallel_and_opposite_edges_and_loops_count_once() -> None:
    topology = Topology.from_edges(3, np.array([0, 1, 0, 2, 1]), np.array([1, 0, 1, 2, 2]))
    assert list(zip(topology.left.tolist(), topology.right.tolist(), strict=True)) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("scores", "labels"),
    [((0.4, 0.3), [0, 0, 1]), ((0.3, 0.4), [0, 1, 1]), ((0.6, 0.5), [0, 0, 1]), ((0.6, 0.51), [0, 0, 0])],
)
def test_of_edges_that_join_all_the_weakest_is_dropped_unless_it_exceeds_a_half(
    scores: tuple[float, float], labels: list[int]
) -> None:
    topology = Topology.from_edges(3, np.array([0, 1]), np.array([1, 2]))
    by_edge = np.where(topology.left == 0, *scores)
    assert all_kept(topology, by_edge).partition.labels.tolist() == labels


def test_groups_with_the_same_members_and_kept_edges_are_one() -> None:
    triangle = Topology.from_edges(3, np.array([0, 0, 1]), np.array([1, 2, 2]))
    both, pair = np.ones(2, dtype=np.bool_), np.array([True, False])
    alike = [Parse(triangle, np.array(edges), both) for edges in ([0, 1], [0, 1], [0, 2])]
    groups = Groups.of([*alike, Parse(triangle, np.array([0, 1]), pair), Parse(triangle, np.array([0, 2]), pair)])
    whole, again, otherwise, first, last, also_first, also_last = groups.distinct.tolist()
    assert whole == again != otherwise
    assert (first, last) == (also_first, also_last)
    assert groups.num_distinct == 4
    z = torch.tensor([[1.0], [3.0], [8.0]])
    pooled = pooled_embeddings(z, torch.tensor([0.9, 0.1, 0.5]), groups)[groups.distinct].flatten()
    assert pooled.tolist() == pytest.approx([2.0, 2.0, 2.8, 1.8, 4.0, 1.8, 4.0])


SMALLER = HsdagConfig(hidden=32)
WITH_DROPOUT = replace(SMALLER, dropout=0.2, steps=2, updates=4)
PAPER = replace(HsdagConfig.paper(), hidden=16, updates=3, steps=4, plans_per_update=4)


class Store:
    """A checkpoint in memory that keeps every state."""

    def __init__(self) -> None:
        self.states: list[tuple[dict[str, torch.Tensor], dict[str, Any]]] = []

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        self.states.append(({k: v.clone() for k, v in tensors.items()}, dict(state)))

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        return self.states[-1] if self.states else None


def problem_of(fast: int) -> tuple[Problem, ScheduleEvaluator]:
    """A chain of blocks with shortcuts; device ``fast`` of two is twice as fast as the other on every unit."""
    edges = [(v, v + 1) for v in range(47)] + [(v, v + 3) for v in range(0, 44, 4)]
    shapes = [(1, 8, 64, 64)] * 24 + [(1, 64, 8, 8)] * 24
    graph = graph_from_edges(["Convolution", "Relu", "Add", "Pool"] * 12, edges, shapes=shapes)
    time_s = np.outer([1.7, 0.3, 0.3, 1.7] * 12, np.where(np.arange(2) == fast, 1e-3, 2e-3))
    links: dict[str, Any] = {"launch_s": 2e-4, "link_latency_s": 2e-4, "link_bandwidth_bytes_per_s": 1e12}
    problem = Problem(CoarseGraph(graph, Partition.identity(48), graph), ("D0", "D1"), np.ones((48, 2), dtype=np.bool_))
    costs = ScheduleProblem.from_graph(graph, time_s, **links)
    return problem, ScheduleEvaluator(costs, Semantics(Execution.SEQUENTIAL))


class Measured(Evaluator):
    """Simulated latencies, one by one; keeps what it was asked, and stops after so many plans."""

    def __init__(self, inner: Evaluator, most: float) -> None:
        self._inner, self._most, self.asked = inner, most, list[tuple[Plan, float]]()

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        for plan in plans:
            if len(self.asked) >= self._most:
                raise SearchStopped
            self.asked.append((plan, self._inner.evaluate([plan])[0].value))
        return [Score(value) for _, value in self.asked[len(self.asked) - len(plans) :]]


def asked(config: HsdagConfig, limit: float = np.inf, store: Store | None = None, seed: int = 1) -> list[Plan]:
    """What a search evaluates, in turn."""
    problem, inner = problem_of(0)
    evaluator = Measured(inner, limit)
    HsdagPlacer(config).search(problem, evaluator, Limits(seed=seed), store)
    return [plan for plan, _ in evaluator.asked]


@pytest.mark.parametrize("config", [replace(SMALLER, updates=5), WITH_DROPOUT, PAPER])
def test_a_killed_search_resumes_as_if_it_had_not_been_killed(config: HsdagConfig) -> None:
    whole = asked(config)
    assert asked(config, 10, seed=2) != whole[:10]
    for limit in (1, len(whole) // 2):
        store = Store()
        asked(config, limit, store)
        resumed = asked(config, store=store)
        assert 0 < len(resumed) <= len(whole)
        assert resumed == whole[len(whole) - len(resumed) :]
        assert len(resumed) >= len(whole) - limit


def test_resuming_another_configuration_is_refused() -> None:
    store = Store()
    asked(SMALLER, 20, store)
    with pytest.raises(SearchError, match=r"other options of hsdag \(epochs\)"):
        asked(replace(SMALLER, epochs=2), store=store)


def test_costs_that_are_known_go_straight_to_the_logits_by_a_learned_weight() -> None:
    problem, inner = problem_of(0)
    placer = HsdagPlacer(replace(SMALLER, updates=4))
    placer.search(replace(problem, costs=inner.problem), inner)
    assert placer.trainer is not None
    assert dict(placer.trainer.policy.network.named_parameters())["slowness"].item() > 0.003


def test_ops_that_take_no_time_are_placed() -> None:
    problem = units.problem_of(ScheduleProblem.from_arrays(np.zeros((3, 2)), [(0, 1)], launch_s=[1.0, 1.0]))
    generator = torch.Generator().manual_seed(0)
    (draw,) = HsdagPlacer(SMALLER).policy(problem, generator).draw(1, Exploring(0.0, 1.0), generator)
    assert set(draw.plan.placement.tolist()) <= {0, 1}


def test_each_ablation_of_table_3_takes_its_features_away() -> None:
    everything = set(feature_groups(SMALLER))
    assert everything - set(feature_groups(replace(SMALLER, output_shape=False))) == {"output_shape"}
    assert everything - set(feature_groups(replace(SMALLER, node_id=False))) == {"positional"}
    structure = everything - set(feature_groups(replace(SMALLER, structure=False)))
    assert structure == {"in_degree", "out_degree", "fractal"}


@pytest.mark.parametrize(("fast", "seed"), [(0, 1), (1, 2)])
def test_in_80_evaluations_the_faster_device_is_believed_in_and_a_split_comes_within_3_percent(
    fast: int, seed: int
) -> None:
    problem, inner = problem_of(fast)
    placer, evaluator = HsdagPlacer(HsdagConfig()), Measured(inner, 80)
    placer.search(problem, evaluator, Limits(seed=seed))
    assert placer.trainer is not None
    assert np.mean(placer.trainer.policy.best(torch.Generator()).plan.placement == fast) > 0.9
    splits = [value for plan, value in evaluator.asked if len(set(plan.placement)) > 1]
    assert min(splits) <= 1.03 * evaluator.asked[fast][1]  # 1.39 and more where nothing is learned
