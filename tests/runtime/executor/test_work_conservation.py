"""The engine in virtual time: against a slow engine, the simulator, and the laws of work-conserving schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.paths import longest_before
from hsdag.runtime.executor import Attempt, Engine, Inbox, Resource, TaskGraph
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Order, Semantics, simulate
from tests.runtime.executor.reference_engine import EIGHTH_S, Case, cases, depth_of, inputs_of, reference_starts
from tests.runtime.executor.virtual_backend import Span, VirtualBackend

pytestmark = pytest.mark.usefixtures("is_helped")


def play(case: Case, num_runs: int = 1, barrier: bool = False) -> list[Span]:
    """What the engine does with runs that are all there from the beginning."""
    backend = VirtualBackend(case.duration_s)
    backend.gate.clear()
    with Engine(case.graph, backend, ranks=case.ranks, barrier=barrier) as engine:
        runs = [engine.submit(slot) for slot in range(num_runs)]
        backend.gate.set()
        for run in runs:
            assert run.wait(60)
    assert sorted(backend.ended_slots) == list(range(num_runs))
    return backend.spans


def overlap_s(span: Span, start_s: float, end_s: float) -> float:
    return max(0.0, min(span.end_s, end_s) - max(span.start_s, start_s))


def of_resource(case: Case, spans: list[Span], place: int) -> list[Span]:
    return [span for span in spans if case.graph.resource[span.task] == place]


@given(cases(), st.booleans())
def test_starts_are_those_of_a_slow_engine(case: Case, barrier: bool) -> None:
    found = sorted((span.start_s, span.task) for span in play(case, barrier=barrier))
    assert found == reference_starts(case, barrier)


@given(cases(), st.integers(1, 3))
def test_every_task_of_every_run_starts_exactly_once_after_its_inputs(case: Case, num_runs: int) -> None:
    spans = play(case, num_runs)
    found = {(span.slot, span.task): span for span in spans}
    assert len(spans) == len(found) == num_runs * case.graph.num_tasks
    for (slot, task), span in found.items():
        assert all(found[slot, u].end_s <= span.start_s for u in inputs_of(case.graph)[task])


@given(cases(), st.integers(1, 3), st.booleans())
def test_no_resource_takes_more_than_its_capacity(case: Case, num_runs: int, barrier: bool) -> None:
    spans = play(case, num_runs, barrier)
    for place, resource in enumerate(case.graph.resources):
        here = of_resource(case, spans, place)
        for span in here:
            assert sum(s.start_s <= span.start_s < s.end_s for s in here) <= resource.capacity


@given(cases(), st.integers(1, 3))
def test_what_is_ready_waits_only_while_its_resource_is_full(case: Case, num_runs: int) -> None:
    spans = play(case, num_runs)
    end_s = {(span.slot, span.task): span.end_s for span in spans}
    for span in spans:
        ready_s = max((end_s[span.slot, u] for u in inputs_of(case.graph)[span.task]), default=0.0)
        place = int(case.graph.resource[span.task])
        work_s = sum(overlap_s(s, ready_s, span.start_s) for s in of_resource(case, spans, place))
        assert work_s == case.graph.resources[place].capacity * (span.start_s - ready_s)


@given(cases(shortest=1), st.integers(1, 3))
def test_the_oldest_run_and_then_the_smallest_rank_goes_first(case: Case, num_runs: int) -> None:
    spans = play(case, num_runs)
    end_s = {(span.slot, span.task): span.end_s for span in spans}

    def ready_s(span: Span) -> float:
        return max((end_s[span.slot, u] for u in inputs_of(case.graph)[span.task]), default=0.0)

    def key(span: Span) -> tuple[int, float, int]:
        return span.run, ready_s(span) if case.ranks is None else case.ranks[span.task], span.task

    for span in spans:
        here = of_resource(case, spans, int(case.graph.resource[span.task]))
        passed_over = [s for s in here if ready_s(s) <= span.start_s < s.start_s]
        assert all(key(span) < key(s) for s in passed_over)


@given(cases(), st.integers(1, 3))
def test_with_a_barrier_a_level_begins_when_the_one_before_has_ended(case: Case, num_runs: int) -> None:
    spans, depth = play(case, num_runs, barrier=True), depth_of(case.graph)
    for span in spans:
        before = [s for s in spans if s.slot == span.slot and depth[s.task] < depth[span.task]]
        assert all(s.end_s <= span.start_s for s in before)


def makespans_s(seed: int, order: Order) -> tuple[float, float]:
    """Of the engine and of the simulator, for a random problem without communication, in exact durations."""
    rng = np.random.default_rng(seed)
    count, num_devices = int(rng.integers(1, 40)), int(rng.integers(1, 5))
    tail, head = np.nonzero(np.triu(rng.random((count, count)) < rng.uniform(0, 4) / count, 1))
    label = rng.permutation(count)
    problem = ScheduleProblem.from_arrays(
        rng.integers(0, 9, (count, num_devices)) * EIGHTH_S, np.stack([label[tail], label[head]], axis=1)
    )
    placement = rng.integers(0, num_devices, count)
    priority = rng.integers(0, 5, count).astype(float)
    edges = np.stack([problem.edge_src, problem.edge_dst], axis=1)
    devices = tuple(Resource(name, d) for d, name in enumerate(problem.device_names))
    graph = TaskGraph.of(problem.op_names, placement, devices, edges)
    duration_s = problem.time_s[np.arange(count), placement]
    behind_s = longest_before(graph.order[::-1], graph.successors, duration_s, np.zeros(len(graph.edges)))
    by_path = -(duration_s + behind_s)
    ranks = {Order.FIFO: None, Order.PRIORITY: priority, Order.CRITICAL_PATH: by_path}[order]
    simulated = simulate(problem, placement, Semantics(order=order), priority)
    found = {span.task: span for span in play(Case(graph, duration_s, ranks))}
    assert [found[v].start_s for v in range(count)] == pytest.approx(simulated.start_s.tolist(), rel=1e-9, abs=1e-9)
    return max(span.end_s for span in found.values()), simulated.makespan_s


@pytest.mark.parametrize("order", [Order.FIFO, Order.PRIORITY, Order.CRITICAL_PATH])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_starts_and_makespan_are_those_of_the_simulator(order: Order, seed: int) -> None:
    found_s, expected_s = makespans_s(seed, order)
    assert found_s == pytest.approx(expected_s, rel=1e-9)


def test_runs_in_flight_fill_what_one_leaves_idle() -> None:
    """A chain over two devices: one run takes 2 s, and each further one adds the 1 s of the slower device."""
    devices = (Resource("a", 0), Resource("b", 1))
    case = Case(TaskGraph.of(("first", "second"), [0, 1], devices, [(0, 1)]), np.array([1.0, 1.0]), None)
    spans = play(case, num_runs=5)
    ends_s = [max(s.end_s for s in spans if s.slot == slot) for slot in range(5)]
    assert ends_s == [2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_task_that_ends_at_once_does_not_hold_up_another_device() -> None:
    """All roots of all devices start before the second task of any of them."""
    order: list[int] = []

    class Instant(VirtualBackend):
        def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
            order.append(attempt.task)
            return True

    devices = (Resource("a", 0), Resource("b", 1))
    graph = TaskGraph.of(tuple("abcdef"), [0, 0, 0, 0, 1, 1], devices, [(0, 1), (1, 2), (2, 3), (4, 5)])
    with Engine(graph, Instant(np.zeros(6))) as engine:
        assert engine.submit().wait(60)
    assert set(order[:2]) == {0, 4}
