"""The simulator against a slow reference and against the laws of scheduling, over random problems."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir import PlacementError, graph_from_edges
from hsdag.ir.errors import OptionError
from hsdag.runtime.costs import CostModel, CostSource, sequential_latency_s
from hsdag.runtime.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Links, Order, Semantics, simulate, simulate_makespans


def _load_reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "reference_simulator", Path(__file__).with_name("reference_simulator.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


reference_simulator = _load_reference()
Case = tuple[ScheduleProblem, np.ndarray, np.ndarray]


def random_case(seed: int, num_ops: int, num_devices: int) -> Case:
    """A problem, a placement and priorities; every other one of small whole numbers, so that ties abound."""
    rng = np.random.default_rng(seed)
    n, d = num_ops, num_devices
    tied = seed % 2 == 0

    def amounts(high: float, *shape: int) -> np.ndarray:
        return rng.integers(0, 4, shape).astype(float) if tied else high * rng.random(shape)

    density = min(1.0, rng.uniform(0, 4) / n)
    label = rng.permutation(n)  # op indices need not be topological
    edges = [(label[u], label[v]) for v in range(n) for u in range(v) if rng.random() < density]
    bandwidth = np.where(rng.random((d, d)) < 0.3, np.inf, 1.0 + amounts(9, d, d))
    problem = ScheduleProblem.from_arrays(
        amounts(2, n, d),
        np.array(edges, dtype=np.int64).reshape(-1, 2),
        output_bytes=amounts(5, n),
        edge_bytes=amounts(5, len(edges)),
        link_latency_s=amounts(1, d, d),
        link_bandwidth_bytes_per_s=bandwidth,
        weight_bytes=amounts(5, n),
        launch_s=amounts(1, d),
        op_overhead_s=float(rng.choice([0, 1, 0.3])),
        transfer_overhead_s=float(rng.choice([0, 1, 0.3])),
    )
    return problem, rng.integers(0, d, n), rng.integers(0, 5, n).astype(float)


cases = st.builds(random_case, st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 5))
semantics = st.builds(
    Semantics,
    st.sampled_from(Execution),
    st.sampled_from(Order),
    st.sampled_from(Links),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 5),
)
work_conserving = st.builds(Semantics, order=st.sampled_from(Order), links=st.sampled_from(Links))


@settings(max_examples=400)
@given(cases, semantics)
def test_simulator_agrees_with_the_reference(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    assert how.order is not None
    slow = reference_simulator.Reference(
        problem, placement.tolist(), how.order.value, how.links.value, priority.tolist(), how.noise_sigma, how.seed
    )
    expected = slow.sequential() if how.execution is Execution.SEQUENTIAL else slow.work_conserving()
    found = simulate(problem, placement, how, priority)
    ops = range(problem.num_ops)
    assert found.makespan_s == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(found.start_s, [slow.begin[v] for v in ops], rtol=1e-9)
    np.testing.assert_allclose(found.end_s, [slow.end[v] for v in ops], rtol=1e-9)
    t = found.transfers
    keys = list(zip(t.op.tolist(), t.dst_device.tolist(), strict=True))
    assert sorted(keys) == sorted(slow.sent)
    rows = np.stack([t.start_s, t.end_s, t.size_bytes], axis=1)
    np.testing.assert_allclose(rows, np.array([slow.sent[k] for k in keys]).reshape(-1, 3), rtol=1e-9)
    peaks = [slow.peak_memory(d) for d in range(problem.num_devices)]
    np.testing.assert_allclose(found.peak_memory_bytes, peaks, rtol=1e-9)


@given(cases, work_conserving)
def test_no_device_idles_while_an_op_is_ready(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    run = simulate(problem, placement, how, priority)
    ready = ready_s(problem, run.device, run.end_s, run.transfers)
    for v in range(problem.num_ops):
        same = np.flatnonzero(placement == placement[v])
        busy = [(run.start_s[u], run.end_s[u] + problem.op_overhead_s) for u in same if u != v]
        covered = float(ready[v])  # from readiness to start, other ops and their overheads fill the device
        for begin, end in sorted(busy):
            if begin <= covered + 1e-9:
                covered = max(covered, end)
        assert covered >= run.start_s[v] - 1e-9


@given(cases, semantics)
def test_no_op_starts_before_its_inputs_have_arrived(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    run = simulate(problem, placement, how, priority)
    assert np.all(run.start_s >= ready_s(problem, run.device, run.end_s, run.transfers) - 1e-12)


@given(cases, semantics)
def test_no_two_ops_of_a_device_overlap(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    run = simulate(problem, placement, how, priority)
    for d in range(problem.num_devices):
        mine = np.lexsort((run.end_s, run.start_s))
        mine = mine[placement[mine] == d]
        assert np.all(run.start_s[mine][1:] >= run.end_s[mine][:-1] - 1e-12)


@given(cases, st.sampled_from(Execution), st.sampled_from(Order), st.sampled_from(Links))
def test_makespan_is_at_least_the_critical_path_at_the_best_devices(
    case: Case, execution: Execution, order: Order, links: Links
) -> None:
    problem, placement, priority = case
    level = np.zeros(problem.num_ops)
    for v in problem.topological_order:
        inputs = problem.edge_src[problem.edge_dst == v]
        level[v] = problem.time_s[v].min() + level[inputs].max(initial=0.0)
    run = simulate(problem, placement, Semantics(execution, order, links), priority)
    assert run.makespan_s >= level.max() - 1e-9


@given(cases, semantics)
def test_a_batch_gives_what_single_simulations_give(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    batch = np.stack([placement, np.zeros_like(placement), np.roll(placement, 1)])
    alone = [simulate(problem, row, how, priority).makespan_s for row in batch]
    assert simulate_makespans(problem, batch, how, priority, num_threads=2).tolist() == alone


def ready_s(problem: ScheduleProblem, device: np.ndarray, end_s: np.ndarray, transfers: object) -> np.ndarray:
    """[N] when the last input of each op is on its device."""
    rows = zip(transfers.op, transfers.dst_device, transfers.end_s, strict=True)  # type: ignore[attr-defined]
    arrived = {(int(v), int(d)): float(t) for v, d, t in rows}
    ready = np.zeros(problem.num_ops)
    for u, v in zip(problem.edge_src, problem.edge_dst, strict=True):
        at = end_s[u] if device[u] == device[v] else arrived[int(u), int(device[v])]
        ready[v] = max(ready[v], at)
    return ready


@given(st.integers(0, 10_000))
def test_sequential_execution_is_the_cost_models_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 12)), int(rng.integers(1, 4))
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.3]
    graph = graph_from_edges(["X"] * n, edges, output_bytes=rng.integers(1, 1000, n).tolist())
    costs = CostModel(
        rng.random((n, d)), rng.random(d), rng.random((d, d)), 1 + 1e3 * rng.random((d, d)), CostSource.FILE
    )
    problem = ScheduleProblem.from_graph(graph, costs, [f"d{i}" for i in range(d)])
    placements = rng.integers(0, d, (3, n))
    found = simulate_makespans(problem, placements, Semantics(Execution.SEQUENTIAL))
    assert found == pytest.approx(sequential_latency_s(graph, costs, placements))


FORK = ScheduleProblem.from_arrays(np.full((3, 3), 1.0), [(0, 1), (0, 2)], output_bytes=4.0,
                                   link_latency_s=1.0, link_bandwidth_bytes_per_s=4.0)  # fmt: skip


@pytest.mark.parametrize(("links", "makespan_s", "num"), [("independent", 4, 2), ("egress", 4, 1), ("channel", 4, 2)])
def test_a_result_for_two_devices_is_sent_as_the_links_say(links: str, makespan_s: float, num: int) -> None:
    run = simulate(FORK, [0, 1, 2], Semantics(links=Links(links)))
    assert (run.makespan_s, run.num_transfers, run.transfer_bytes) == (makespan_s, num, 4.0 * num)


def test_two_results_share_one_channel_but_not_independent_links() -> None:
    p = ScheduleProblem.from_arrays([[1, 1], [0, 1], [1, 1]], [(0, 2), (1, 2)], output_bytes=3.0,
                                    link_bandwidth_bytes_per_s=1.0)  # fmt: skip
    found = [simulate(p, [0, 0, 1], Semantics(links=links)).makespan_s for links in Links]
    assert found == [5.0, 8.0, 8.0]  # both results are there at 1, each takes 3, op 2 takes 1


def test_memory_is_freed_after_the_last_use() -> None:
    p = ScheduleProblem.from_arrays(np.ones((3, 1)), [(0, 1), (1, 2)], output_bytes=[8, 2, 1], weight_bytes=[1, 1, 1])
    assert simulate(p, [0, 0, 0]).peak_memory_bytes.tolist() == [13.0]  # 3 of weights, 8 + 2 while op 1 runs


def test_ties_go_by_op_index() -> None:
    p = ScheduleProblem.from_arrays(np.ones((4, 1)), [])
    for order in (Order.FIFO, Order.DEPTH_FIRST, Order.CRITICAL_PATH):
        assert simulate(p, [0] * 4, Semantics(order=order)).start_s.tolist() == [0, 1, 2, 3]
    assert simulate(p, [0] * 4, priority=[1, 0, 1, 0]).start_s.tolist() == [2, 0, 3, 1]


def test_noise_keeps_the_median_and_repeats_with_its_seed() -> None:
    p = ScheduleProblem.from_arrays(np.ones((20_000, 1)), [])
    run = simulate(p, np.zeros(20_000, dtype=int), Semantics(noise_sigma=0.3, seed=3))
    again = simulate(p, np.zeros(20_000, dtype=int), Semantics(noise_sigma=0.3, seed=3))
    logs = np.log(run.end_s - run.start_s)
    assert np.array_equal(run.end_s, again.end_s)
    assert (np.median(logs), np.std(logs)) == pytest.approx((0.0, 0.3), abs=0.01)


def test_unsupported_ops_are_infinite_in_a_batch_and_an_error_alone() -> None:
    p = ScheduleProblem.from_arrays([[1.0, np.nan]], [])
    assert simulate_makespans(p, [[0], [1]]).tolist() == [1.0, np.inf]
    with pytest.raises(PlacementError, match="op 'op0' is on device 'd1', which does not support it"):
        simulate(p, [1])


def test_misuse_is_answered() -> None:
    p = ScheduleProblem.from_arrays([[1.0]], [])
    with pytest.raises(OptionError, match="needs priorities"):
        simulate(p, [0], Semantics(order=Order.PRIORITY))
    with pytest.raises(PlacementError, match="names device 3"):
        simulate(p, [3])
    with pytest.raises(PlacementError, match="a device for each of 1 ops"):
        simulate(p, [0, 0])
    with pytest.raises(ValueError, match="noise_sigma must be finite"):
        Semantics(noise_sigma=-1.0)
