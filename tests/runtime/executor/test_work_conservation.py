"""The engine in virtual time: against a slow engine, and the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import topological_order
from hsdag.ir.kernels import longest_before
from hsdag.runtime.executor import Attempt, Engine, Inbox, Resource, TaskGraph
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Order, Semantics, simulate
from tests.runtime.executor.reference_engine import EIGHTH_S, Case, cases, reference_starts
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


@given(cases(), st.integers(1, 3), st.booleans())
def test_starts_of_all_runs_are_those_of_a_slow_engine(case: Case, num_runs: int, barrier: bool) -> None:
    spans = play(case, num_runs, barrier)
    assert sorted((span.start_s, span.slot, span.task) for span in spans) == reference_starts(case, num_runs, barrier)


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
    backwards = topological_order(count, graph.edges[:, 0], graph.edges[:, 1])[::-1]
    behind_s = longest_before(backwards, graph.successors, duration_s, np.zeros(len(graph.edges)))
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
