"""List schedulers against the literature's example, plain references, and what their promises are worth."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.base.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.lists.baselines import RandomPlacer, uniform_placements
from hsdag.methods.lists.etf import EtfPlacer, MEtfPlacer
from hsdag.methods.lists.schedule import ListSchedule, list_schedule
from hsdag.methods.lists.schedulers import CpopPlacer, GreedyPlacer, HeftPlacer, critical_path, shard_groups
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Semantics
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.runtime.simulator.values import period_s
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import every_placement, random_problem
from tests.hsdag.methods.searches import check_search, not_none, recorded

Key = Callable[[int, int, float, float], tuple[float, ...]]
"""What a scheduler takes the least of: of an op, a device, and the start and end there."""
heft_schedule, cpop_schedule = HeftPlacer().schedule, CpopPlacer().schedule
ALL = [heft_schedule, cpop_schedule, EtfPlacer().schedule, MEtfPlacer().schedule, GreedyPlacer().schedule]


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


def by_urgency(problem: ScheduleProblem, urgency: FloatArray, *, by_start: bool = False) -> Key:
    """Ops by priority; on the device where they end first, or start first."""
    return lambda v, d, start_s, end_s: (-urgency[v], v, start_s if by_start else end_s, end_s, d)


def heft_key(problem: ScheduleProblem) -> Key:
    return by_urgency(problem, levels_of(tables_of(problem)).upward_s)


def critical_path_key(problem: ScheduleProblem) -> Key:
    return by_urgency(problem, levels_of(tables_of(problem)).upward_s, by_start=True)


def greedy_key(problem: ScheduleProblem) -> Key:
    """Breadth first; the latest end so far can only grow by that of the op."""
    queue = [v for v in range(problem.num_ops) if v not in problem.edge_dst]
    for turn, v in enumerate(queue):  # which grows while it is read
        for w in problem.edge_dst[problem.edge_src == v].tolist():
            if w not in queue and np.isin(problem.edge_src[problem.edge_dst == w], queue[: turn + 1]).all():
                queue.append(w)
    return by_urgency(problem, -np.argsort(queue).astype(np.float64))


def etf_key(problem: ScheduleProblem) -> Key:
    static_s = levels_of(tables_of(problem)).static_s
    return lambda v, d, start_s, end_s: (start_s, -static_s[v], v, end_s, d)


def cpop_key(problem: ScheduleProblem) -> Key:
    """Ops of the critical path on the device that runs all of it in the least time."""
    levels, tables = levels_of(tables_of(problem)), tables_of(problem)
    path, total_s = critical_path(levels, np.diff(tables.in_first) == 0), (levels.upward_s + levels.downward_s).round(9)
    path_s = tables.time_s[path].sum(axis=0)
    pin = int(path_s.argmin()) if np.isfinite(path_s.min()) else -1
    of_op = by_urgency(problem, total_s)

    def key(v: int, d: int, start_s: float, end_s: float) -> tuple[float, ...]:
        urgency, op, *others = of_op(v, d, start_s, end_s)
        return urgency, op, float(pin >= 0 and v in path and d != pin), *others

    return key


def critical_path_schedule(problem: ScheduleProblem) -> ListSchedule:
    tables = tables_of(problem)
    return list_schedule(tables, levels_of(tables).upward_s, by_start=True)


@pytest.mark.parametrize(
    ("scheduler", "key_of", "insertion"),
    [
        (heft_schedule, heft_key, True),
        (cpop_schedule, cpop_key, True),
        (EtfPlacer().schedule, etf_key, False),
        (MEtfPlacer().schedule, etf_key, False),  # where memory has no limit
        (GreedyPlacer().schedule, greedy_key, False),
        (critical_path_schedule, critical_path_key, False),
    ],
)
@given(st.integers(0, 2**32), st.integers(1, 15), st.booleans(), st.booleans())
def test_of_all_that_could_come_next_the_best_does_as_early_as_it_can(
    scheduler: Callable[[ScheduleProblem], ListSchedule],
    key_of: Callable[[ScheduleProblem], Key],
    insertion: bool,
    seed: int,
    num_ops: int,
    whole: bool,
    own_sizes: bool,
) -> None:
    problem = drawn(seed, num_ops, whole=whole, own_sizes=own_sizes)
    found, key, order = scheduler(problem), key_of(problem), scheduler(problem).sequence.tolist()
    for turn, chosen in enumerate(order):
        options = [
            (key(v, d, start_s, start_s + problem.time_s[v, d]), start_s, v, d)
            for v in order[turn:]
            if np.isin(problem.edge_src[problem.edge_dst == v], order[:turn]).all()
            for d in np.flatnonzero(problem.supported[v]).tolist()
            for start_s in [first_start_s(problem, found, order[:turn], v, d, insertion=insertion)]
        ]
        assert min(options)[1:] == (found.start_s[chosen], chosen, found.device[chosen])
        assert found.end_s[chosen] == found.start_s[chosen] + problem.time_s[chosen, found.device[chosen]]


def first_start_s(
    problem: ScheduleProblem, found: ListSchedule, placed: list[int], v: int, d: int, *, insertion: bool
) -> float:
    """When v can first start on d beside the ops that are placed: in a gap of some length, or behind all."""
    edges = np.flatnonzero(problem.edge_dst == v)
    home = found.device[problem.edge_src[edges]]
    link_s = problem.link_latency_s[home, d] + problem.edge_bytes[edges] / problem.link_bandwidth_bytes_per_s[home, d]
    ready_s = (found.end_s[problem.edge_src[edges]] + np.where(home == d, 0.0, link_s)).max(initial=0.0)
    idle_since, overhead_s = 0.0, problem.op_overhead_s
    for begin, end in sorted((found.start_s[u], found.end_s[u] + overhead_s) for u in placed if found.device[u] == d):
        start_s = max(idle_since, ready_s)
        if insertion and begin > idle_since and start_s + problem.time_s[v, d] + overhead_s <= begin:
            return float(start_s)
        idle_since = max(idle_since, end)
    return float(max(idle_since, ready_s))


def test_ranks_are_those_published_and_heft_takes_80_and_cpop_86_with_the_path_on_p2() -> None:
    priority = levels_of(tables_of(published())).upward_s
    table = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert np.allclose(priority, table, atol=5e-4)
    heft, cpop = heft_schedule(published()), cpop_schedule(published())
    assert (heft.end_s.max(), cpop.end_s.max()) == (80, 86)
    assert heft.sequence.tolist() == [0, 2, 3, 1, 4, 5, 8, 6, 7, 9]  # n1 n3 n4 n2 n5 n6 n9 n7 n8 n10
    assert (np.diff(heft.start_s[np.argsort(heft.priority)]) >= 0).all()
    assert cpop.device[[0, 1, 8, 9]].tolist() == [1, 1, 1, 1]


def test_m_etf_spreads_results_that_etf_piles_up() -> None:
    # Both ops start at 0 and 1 on the fast device, whose results must both wait for the reader that follows.
    problem = ScheduleProblem.from_arrays(
        [[1.0, 9.0], [1.0, 9.0], [9.0, 9.0]], [(0, 2), (1, 2)], output_bytes=[6, 6, 1], memory_bytes=[10, 30]
    )
    assert simulate(problem, [0, 0, 0]).peak_memory_bytes[0] == 13
    found = MEtfPlacer().schedule(problem)
    assert np.all(simulate(problem, found.device).peak_memory_bytes <= problem.memory_bytes)


@given(st.integers(0, 2**32), st.sampled_from(ALL))
def test_weights_never_exceed_a_memory_while_there_is_another_device(
    seed: int, scheduler: Callable[[ScheduleProblem], ListSchedule]
) -> None:
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


@pytest.mark.parametrize(("num_devices", "num_shards"), [(2, 2), (4, 4), (9, 9), (3, 6)])
def test_shards_go_where_their_inputs_are_one_for_each_device_in_a_round(num_devices: int, num_shards: int) -> None:
    returned = not_none(recorded(sharded(num_devices, num_shards), "enumerative")[1])
    reverse = list(range(num_devices))[::-1] * (num_shards // num_devices)
    assert returned[: 2 * num_shards].tolist() == reverse + reverse


def test_shards_come_before_reductions_and_meta_ops_in_order() -> None:
    labels = OpLabels(
        ("Op",) * 5, ("",) * 5, ("b", "b", "a", "a", ""), ("reduce", "shard", "", "reduce", ""), ("",) * 5
    )
    problem = ScheduleProblem.from_arrays(np.ones((5, 2)), [(2, 3), (3, 1), (1, 0), (4, 2)], labels=labels)
    assert [group.tolist() for group in shard_groups(problem)] == [[4], [2], [3], [1], [0]]


def test_meta_ops_that_depend_on_each_other_in_a_cycle_are_refused_in_one_line() -> None:
    labels = OpLabels(("Op",) * 3, ("",) * 3, ("a", "b", "a"), ("",) * 3, ("",) * 3)
    problem = ScheduleProblem.from_arrays(np.ones((3, 2)), [(0, 1), (1, 2)], labels=labels)
    with pytest.raises(OptionError, match="depend on each other in a cycle") as caught:
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


LISTS = ("met", "greedy", "heft", "cpop", "etf", "m-etf", "critical-path", "enumerative")


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("method", [*LISTS, "ea", "sa"])
@given(
    st.integers(0, 2**32), st.sampled_from([LATENCY, THROUGHPUT]), st.sampled_from(list(Execution)), st.booleans()
)  # fmt: skip
@settings(max_examples=settings().max_examples // 2)
def test_plans_are_legal_and_begin_with_every_op_where_it_is_fastest(
    method: str, seed: int, objective: Objective, how: Execution, memory: bool
) -> None:
    check_search(method, seed, Semantics(how), objective, memory=memory)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("method", [m for m in LISTS if m not in ("met", "enumerative")])
def test_equal_ops_are_shared_out_evenly_for_throughput(method: str) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((12, 4)), [])
    returned = not_none(recorded(problem, method, objective=THROUGHPUT)[1])
    assert np.bincount(returned).tolist() == [3, 3, 3, 3]


@pytest.mark.usefixtures("both_ways")
@given(st.integers(0, 2**32), st.sampled_from(LinkSharing))
def test_balancing_a_single_choice_takes_the_least_period(seed: int, links: LinkSharing) -> None:
    # All but the last op are fixed; the last one decides which resource is busiest.
    rng = np.random.default_rng(seed)
    times = rng.random((6, 3))
    times[:5][np.arange(3) != rng.integers(3, size=5)[:, None]] = np.nan
    problem = ScheduleProblem.from_arrays(
        times,
        [(u, 5) for u in range(5)],
        output_bytes=rng.random(6),
        link_latency_s=0.1,
        link_bandwidth_bytes_per_s=2.0,
        transfer_overhead_s=0.05,
        op_overhead_s=0.02,
    )
    returned = not_none(recorded(problem, "heft", Semantics(links=links), THROUGHPUT)[1])
    choices = np.repeat(returned[None], 3, axis=0)
    choices[:, 5] = np.arange(3)
    periods = period_s(problem, choices, Semantics(links=links))
    alone = period_s(problem, returned[None], Semantics(links=links))[0]
    assert alone <= periods.min() * (1 + 1e-12)
