"""List schedulers against the literature's example, plain references, and what their promises are worth."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.errors import OptionError
from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.lists.baselines import RandomPlacer, uniform_placements
from hsdag.methods.lists.etf import EtfPlacer, MEtfPlacer
from hsdag.methods.lists.schedule import ListSchedule
from hsdag.methods.lists.schedulers import CpopPlacer, GreedyPlacer, HeftPlacer, shard_groups
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import every_placement, random_problem
from tests.hsdag.methods.lists import reference_schedulers as reference
from tests.hsdag.methods.searches import recorded

Scheduler = Callable[[ScheduleProblem], ListSchedule]
heft_schedule, cpop_schedule, greedy_schedule = HeftPlacer().schedule, CpopPlacer().schedule, GreedyPlacer().schedule
etf_schedule, m_etf_schedule = EtfPlacer().schedule, MEtfPlacer().schedule
ALL: list[Scheduler] = [heft_schedule, cpop_schedule, etf_schedule, m_etf_schedule, greedy_schedule]


def published() -> ScheduleProblem:
    """The example of Topcuoglu et al. 2002, figure 1 and table 1: ten tasks, three processors."""
    times = [
        *([14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10]),
        *([13, 16, 9], [7, 15, 11], [5, 11, 14], [18, 12, 20], [21, 7, 16]),
    ]
    sizes = "1-2:18 1-3:12 1-4:9 1-5:11 1-6:14 2-8:19 2-9:16 3-7:23 4-8:27 4-9:23 5-9:13 6-8:15 7-10:17 8-10:11 9-10:13"
    edges = np.array([[int(x) for x in re.split("[-:]", edge)] for edge in sizes.split()])
    return ScheduleProblem.from_arrays(
        np.array(times, dtype=float), edges[:, :2] - 1, edge_bytes=edges[:, 2], link_bandwidth_bytes_per_s=1.0
    )


def drawn(seed: int, num_ops: int, *, whole: bool, own_sizes: bool = False) -> ScheduleProblem:
    """Any shape of graph; with ``whole`` times and sizes so that ties abound and sums are exact."""
    rng = np.random.default_rng(seed)
    num_devices, density = int(rng.integers(1, 5)), rng.choice([0.0, 0.1, 0.3, 0.8])
    tables: dict[str, Any] = {"link_latency_s": 1.0, "link_bandwidth_bytes_per_s": 2.0} if whole else {}
    tables |= {"op_overhead_s": float(rng.choice([0.0, 0.25]))} | ({} if own_sizes else {"edge_bytes": None})
    return random_problem(seed, num_ops, num_devices, density, real=not whole, shuffled=True, **tables)


def assert_same(found: ListSchedule, device: dict[int, int], start: dict[int, float], end: dict[int, float]) -> None:
    ops = range(len(device))
    assert found.device.tolist() == [device[v] for v in ops]
    assert found.start_s.tolist() == [start[v] for v in ops]
    assert found.end_s.tolist() == [end[v] for v in ops]


def assert_valid(problem: ScheduleProblem, found: ListSchedule) -> None:
    """Inputs are there, no two ops at once, times as given."""
    chosen = problem.time_s[np.arange(problem.num_ops), found.device]
    assert np.array_equal(found.end_s, found.start_s + chosen)
    for u, v, size in zip(problem.edge_src, problem.edge_dst, problem.edge_bytes, strict=True):
        home, away = found.device[u], found.device[v]
        link_s = problem.link_latency_s[home, away] + size / problem.link_bandwidth_bytes_per_s[home, away]
        assert found.start_s[v] >= found.end_s[u] + (link_s if home != away else 0.0)
    for d in range(problem.num_devices):
        ops = found.ranks.argsort()
        ops = ops[found.device[ops] == d]
        assert np.all(found.start_s[ops][1:] >= found.end_s[ops][:-1] + problem.op_overhead_s)


def test_upward_ranks_are_those_published() -> None:
    ranks = levels_of(tables_of(published())).upward_s
    table = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert np.allclose(ranks, table, atol=5e-4)


def test_heft_takes_80_on_the_published_example() -> None:
    found = heft_schedule(published())
    assert found.makespan_s == 80
    assert found.sequence.tolist() == [0, 2, 3, 1, 4, 5, 8, 6, 7, 9]  # n1 n3 n4 n2 n5 n6 n9 n7 n8 n10


def test_cpop_takes_86_on_the_published_example_with_the_path_on_p2() -> None:
    found = cpop_schedule(published())
    assert found.makespan_s == 86
    assert found.device[[0, 1, 8, 9]].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("scheduler", "plain"),
    [(heft_schedule, reference.heft), (etf_schedule, reference.etf), (greedy_schedule, reference.greedy)],
)
@given(st.integers(0, 2**32), st.integers(1, 25), st.booleans(), st.booleans())
def test_a_schedule_is_that_of_a_plain_scheduler(
    scheduler: Scheduler,
    plain: Callable[[ScheduleProblem], reference.Schedule],
    seed: int,
    num_ops: int,
    whole: bool,
    own_sizes: bool,
) -> None:
    problem = drawn(seed, num_ops, whole=whole, own_sizes=own_sizes)
    assert_same(scheduler(problem), *plain(problem))


@given(st.integers(0, 2**32), st.integers(1, 25))
def test_m_etf_is_etf_where_memory_has_no_limit(seed: int, num_ops: int) -> None:
    problem = drawn(seed, num_ops, whole=True)
    one, other = m_etf_schedule(problem), etf_schedule(problem)
    assert_same(one, *(dict(enumerate(a.tolist())) for a in (other.device, other.start_s, other.end_s)))


@given(st.integers(0, 2**32), st.integers(1, 30), st.booleans(), st.sampled_from(ALL))
def test_every_schedule_is_valid(seed: int, num_ops: int, whole: bool, scheduler: Scheduler) -> None:
    problem = drawn(seed, num_ops, whole=whole, own_sizes=True)
    assert_valid(problem, scheduler(problem))


@given(st.integers(0, 2**32), st.integers(1, 30), st.booleans(), st.sampled_from(ALL))
def test_a_promise_holds_where_the_devices_keep_its_order(
    seed: int, num_ops: int, whole: bool, scheduler: Scheduler
) -> None:
    # A device that never idles may start an op too early and make a more urgent one late; else nothing is later.
    problem = drawn(seed, num_ops, whole=whole)
    promised = scheduler(problem)
    run = simulate(problem, promised.device, ranks=promised.ranks)
    for d in range(problem.num_devices):
        ops = np.flatnonzero(promised.device == d)
        planned = ops[np.argsort(promised.ranks[ops])]
        played = ops[np.lexsort((promised.ranks[ops], run.end_s[ops], run.start_s[ops]))]
        if not np.array_equal(planned, played):
            return
    assert np.all(run.end_s <= promised.end_s)


def test_a_path_that_no_device_runs_whole_does_not_stop_cpop() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, np.nan], [np.nan, 2.0], [3.0, 3.0]], [(0, 1)], link_latency_s=0.5)
    found = cpop_schedule(problem)
    assert found.device[:2].tolist() == [0, 1]
    assert_valid(problem, found)


def test_m_etf_spreads_results_that_etf_piles_up() -> None:
    # Both ops start at 0 and 1 on the fast device, whose results must both wait for the reader that follows.
    problem = ScheduleProblem.from_arrays(
        [[1.0, 9.0], [1.0, 9.0], [9.0, 9.0]], [(0, 2), (1, 2)], output_bytes=[6, 6, 1], memory_bytes=[10, 30]
    )
    assert simulate(problem, [0, 0, 0]).peak_memory_bytes[0] == 13
    found = m_etf_schedule(problem)
    assert np.all(simulate(problem, found.device).peak_memory_bytes <= problem.memory_bytes)


@given(st.integers(0, 2**32), st.sampled_from(ALL))
def test_weights_never_exceed_a_memory_while_there_is_another_device(seed: int, scheduler: Scheduler) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 5, 12)
    memory = float(weights.sum()) / 3 + 4  # some device always has room
    edges = [(u, v) for v in range(12) for u in range(v) if rng.random() < 0.2]
    problem = ScheduleProblem.from_arrays(rng.random((12, 3)), edges, weight_bytes=weights, memory_bytes=memory)
    assert np.all(np.bincount(scheduler(problem).device, weights, 3) <= memory)


def sharded(num_devices: int, num_shards: int) -> ScheduleProblem:
    """Inputs on fixed devices, in reverse order; a multiplication and a sum over them."""
    inputs, shards, n = range(num_shards), range(num_shards, 2 * num_shards), 2 * num_shards + 1
    times = np.ones((n, num_devices))
    for v in inputs:
        times[v, np.arange(num_devices) != (num_devices - 1 - v) % num_devices] = np.nan
    edges = [(v, v + num_shards) for v in inputs] + [(v, n - 1) for v in shards]
    meta = ("",) * num_shards + ("product",) * (num_shards + 1)
    roles = ("",) * num_shards + ("shard",) * num_shards + ("reduce",)
    labels = OpLabels(("Op",) * n, ("",) * n, meta, roles, ("",) * n)
    sizes = np.r_[np.arange(1.0, num_shards + 1), np.full(num_shards, 2.0), 1.0]
    return ScheduleProblem.from_arrays(
        times, edges, output_bytes=sizes, link_latency_s=1.0, link_bandwidth_bytes_per_s=1.0, labels=labels
    )


@pytest.mark.parametrize("num_devices", [2, 4, 9])
def test_shards_go_where_their_inputs_are_one_for_each_device(num_devices: int) -> None:
    problem = sharded(num_devices, num_devices)
    _, returned = recorded(problem, "enumerative")
    assert returned is not None
    reverse = list(range(num_devices))[::-1]
    assert returned[: 2 * num_devices].tolist() == reverse + reverse


def test_more_shards_than_devices_are_dealt_evenly() -> None:
    _, returned = recorded(sharded(3, 6), "enumerative")
    assert returned is not None
    assert np.bincount(returned[6:12]).tolist() == [2, 2, 2]


def test_shards_come_before_reductions_and_meta_ops_in_order() -> None:
    labels = OpLabels(
        ("Op",) * 5, ("",) * 5, ("b", "b", "a", "a", ""), ("reduce", "shard", "", "reduce", ""), ("",) * 5
    )
    problem = ScheduleProblem.from_arrays(np.ones((5, 2)), [(2, 3), (3, 1), (1, 0), (4, 2)], labels=labels)
    assert [group.tolist() for group in shard_groups(problem)] == [[4], [2], [3], [1], [0]]


@pytest.mark.parametrize(
    ("meta_ops", "message"),
    [(("", "", ""), "needs the meta-op of each op"), (("a", "b", "a"), "depend on each other in a cycle")],
)
def test_graphs_that_are_not_sharded_are_refused_in_one_line(meta_ops: tuple[str, ...], message: str) -> None:
    labels = OpLabels(("Op",) * 3, ("",) * 3, meta_ops, ("",) * 3, ("",) * 3)
    problem = ScheduleProblem.from_arrays(np.ones((3, 2)), [(0, 1), (1, 2)], labels=labels)
    with pytest.raises(OptionError, match=message) as caught:
        recorded(problem, "enumerative")
    assert "\n" not in str(caught.value)


def test_every_device_of_a_unit_is_drawn_alike_and_no_other() -> None:
    problem = problem_of(random_problem(4, 8, 3))
    drawn = uniform_placements(problem, 6000, np.random.default_rng(0))
    share = (drawn[:, :, None] == np.arange(3)).mean(axis=0)  # [U, D]
    expected = problem.supported / problem.supported.sum(axis=1, keepdims=True)
    assert share == pytest.approx(expected, abs=0.03)
    assert (share[~problem.supported] == 0).all()


def test_few_placements_are_all_seen_and_the_search_ends() -> None:
    costs = random_problem(2, 4, 2)
    problem = problem_of(costs)
    of_units = ScheduleEvaluator.of(problem)
    found = RandomPlacer().search(problem, of_units, Limits(seed=0))
    every = [Plan(each) for each in every_placement(costs)]
    best = min(score.value for score in ScheduleEvaluator(costs, Semantics()).evaluate(every))
    assert (found.score, found.status) == (best, Status.FEASIBLE)


def test_the_seed_decides() -> None:
    problem = problem_of(random_problem(5, 10, 3))
    first, again, other = (uniform_placements(problem, 5, np.random.default_rng(s)) for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
