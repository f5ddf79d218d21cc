"""Walks over batched schedules: the dispatcher lets no device wait, steps are undone whole, and seeds decide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.batching.checking import makespan_s
from hsdag.batching.dispatch import Dispatcher, dispatched_s
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import search_met, search_one_division, warm_start
from hsdag.batching.split import search_split
from hsdag.batching.walks import Cooling, Walk, search_walks
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule, BatchTable
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from tests.hsdag.batching.batched_reference import BatchedBruteForce, random_batched


def dispatched(problem: BatchedProblem, seed: int, cutoff_s: float = np.inf) -> tuple[float, BatchSchedule]:
    """A random placement with random priorities."""
    rng = np.random.default_rng(seed)
    dispatcher = Dispatcher(problem)
    device = rng.integers(problem.costs.num_devices, size=(problem.costs.num_ops, problem.num_groups))
    if not dispatcher.allows(device):
        device[:] = 0
        assert dispatcher.allows(device)
    priority = rng.random(problem.costs.num_ops)
    schedule = dispatcher.schedule(device, priority)
    return dispatched_s(dispatcher.tables, dispatcher.room, device, priority, cutoff_s), schedule


def begun(problem: BatchedProblem, seed: int = 0) -> Walk:
    found = BatchIncumbent(problem, 10.0)
    warm_start(found)
    assert found.best is not None
    return Walk.begin(problem, np.full(problem.costs.num_devices, 1 / problem.costs.num_devices), found.best, seed)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), num_ops=st.integers(1, 9), num_groups=st.integers(1, 4))
def test_what_is_dispatched_is_a_schedule_of_that_makespan(seed: int, num_ops: int, num_groups: int) -> None:
    problem = random_batched(seed, num_ops, 3, num_groups)
    value_s, schedule = dispatched(problem, seed)
    assert makespan_s(problem, schedule) == pytest.approx(value_s)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), num_ops=st.integers(2, 9))
def test_no_batch_could_begin_earlier_while_its_device_rests(seed: int, num_ops: int) -> None:
    problem = random_batched(seed, num_ops, 2, 2)
    value_s, schedule = dispatched(problem, seed)
    for v, d in zip(*np.nonzero(np.isfinite(schedule.start_s)), strict=True):
        earlier = schedule.start_s.copy()
        for rest_s in _rests(problem, schedule, int(d)):
            earlier[v, d] = rest_s
            if rest_s < schedule.start_s[v, d] - 1e-9 and _has_room(problem, schedule, int(v), int(d), rest_s):
                with pytest.raises(ValueError, match="does not wait"):
                    makespan_s(problem, BatchSchedule(schedule.device, earlier))
    assert value_s >= 0


def _busy(problem: BatchedProblem, schedule: BatchSchedule, d: int) -> dict[int, tuple[float, float]]:
    ops = np.flatnonzero(np.isfinite(schedule.start_s[:, d])).tolist()
    size = (schedule.device == d).sum(axis=1)
    taken_s = {v: float(problem.group_time_s[v, d, size[v]]) + problem.costs.op_overhead_s for v in ops}
    return {v: (float(schedule.start_s[v, d]), float(schedule.start_s[v, d]) + taken_s[v]) for v in ops}


def _rests(problem: BatchedProblem, schedule: BatchSchedule, d: int) -> list[float]:
    """When a device has come to the end of a batch, or could begin its first."""
    return [0.0, *(end for _, end in _busy(problem, schedule, d).values())]


def _has_room(problem: BatchedProblem, schedule: BatchSchedule, v: int, d: int, at_s: float) -> bool:
    busy = _busy(problem, schedule, d)
    taken_s = busy[v][1] - busy[v][0]
    return taken_s > 0 and all(w == v or end <= at_s or begin >= at_s + taken_s for w, (begin, end) in busy.items())


@pytest.mark.parametrize("seed", range(20))
def test_a_cutoff_ends_what_is_longer_and_nothing_else(seed: int) -> None:
    problem = random_batched(seed, 8, 2, 2)
    value_s, _ = dispatched(problem, seed)
    assert dispatched(problem, seed, value_s + 1e-9)[0] == value_s
    assert dispatched(problem, seed, value_s - 1e-6)[0] == np.inf


def test_of_two_ready_batches_the_one_of_higher_priority_begins() -> None:
    costs = ScheduleProblem.from_arrays([[1.0], [2.0]], [])
    dispatcher = Dispatcher(BatchedProblem.of(costs, BatchTable.single(costs)))
    schedule = dispatcher.schedule(np.zeros((2, 1), dtype=np.int64), np.array([1.0, 2.0]))
    assert schedule.start_s[:, 0].tolist() == [2.0, 0.0]


@pytest.mark.parametrize("seed", range(12))
def test_after_many_steps_a_walk_stands_where_it_believes_to(seed: int) -> None:
    walk = begun(random_batched(seed, 7, 3, 3), seed)
    walk.run(2000, 1.0)
    believed = walk.state.value_s.copy()
    walk.value()
    assert walk.state.value_s.tolist() == pytest.approx(believed.tolist())
    assert believed[2] <= believed[0]


@pytest.mark.parametrize("seed", range(6))
def test_walks_find_legal_schedules_no_better_than_the_optimum(seed: int) -> None:
    problem = random_batched(seed, 3, 2, 2)
    walk = begun(problem, seed)
    walk.run(2000, 0.5)
    found_s = makespan_s(problem, walk.best())
    assert found_s == pytest.approx(walk.best_s)
    assert found_s >= BatchedBruteForce(problem).makespan_s() - 1e-9


def test_a_walk_divides_numbers_that_list_schedules_do_not() -> None:
    costs = ScheduleProblem.from_arrays([[t, t] for t in (3.0, 3.0, 2.0, 2.0, 2.0)], [])
    found = BatchIncumbent(BatchedProblem.of(costs, BatchTable.single(costs)), 10.0)
    search_one_division(found)
    search_met(found)
    assert found.best_s == 12.0
    search_walks(found, np.array([0.5, 0.5]), Cooling(0.1, 0.001), 5.0)
    assert found.best_s == 6.0


def test_equal_seeds_take_equal_walks_and_others_other_ones() -> None:
    problem = random_batched(3, 9, 3, 4)
    walks = [begun(problem, seed) for seed in (5, 5, 6)]
    for walk in walks:
        walk.run(500, 50.0)
    ends = [(walk.state.device.tolist(), walk.state.priority.tolist()) for walk in walks]
    assert ends[0] == ends[1] != ends[2]


def test_of_equal_makespans_a_walk_prefers_the_cheaper_load() -> None:
    costs = ScheduleProblem.from_arrays([[10.0, 99.0, 99.0], [99.0, 5.0, 1.0]], [])
    problem = BatchedProblem.of(costs, BatchTable.single(costs))
    start = BatchSchedule(np.array([[0], [1]]), np.array([[0.0, np.nan, np.nan], [np.nan, 0.0, np.nan]]))
    walk = Walk.begin(problem, np.array([0.4, 0.3, 0.3]), start, 0)
    walk.run(200, 1e-6)
    assert walk.state.value_s[0] == 10.0
    assert walk.state.device.tolist() == [[0], [2]]


def test_ops_are_packed_into_memory_where_no_list_schedule_fits() -> None:
    times = np.array([[[1.0], [2.0]], [[1.0], [np.nan]]])  # the second op needs the device that the first fills
    costs = ScheduleProblem.from_arrays([[1.0, 2.0], [1.0, 9.0]], [], weight_bytes=[1.0, 1.0], memory_bytes=[1.0, 1.0])
    problem = BatchedProblem.of(costs, BatchTable(1, (1,), times))
    lists, found = BatchIncumbent(problem, 5.0), BatchIncumbent(problem, 5.0)
    warm_start(lists)
    assert lists.best is None
    search_split(found)
    assert found.best is not None
    assert found.best.device.tolist() == [[1], [0]]
    assert found.best_s == 2.0
