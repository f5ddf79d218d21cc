"""Calibration: planted figures come back, priors hold where nothing was measured, costs stay costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.calibration import Observation, Trust, calibrate, platform_calibration, sequential_features
from hsdag.ir import ComputationGraph, graph_from_edges
from hsdag.ir.graph import IntArray
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.platforms import OpClass, Platform, PlatformDevice
from hsdag.runtime.platforms.analytic import analytic_costs, classes_of, roofline
from hsdag.runtime.platforms.platform import OP_CLASSES
from hsdag.runtime.problems.cost_model import CostModel, CostSource

TYPES = ("Convolution", "MatMul", "Relu", "Concat", "MaxPool")
EXACT = Trust(observed=1e-6)


def random_graph(rng: np.random.Generator, n: int) -> ComputationGraph:
    """A chain with shortcuts, whose ops are of all classes."""
    edges = [(v - 1, v) for v in range(1, n)] + [(v - 3, v) for v in range(3, n, 4)]
    types = ["Parameter", *rng.choice(TYPES, n - 1).tolist()]
    shapes = [(int(k),) for k in rng.integers(1_000, 100_000, n)]
    return graph_from_edges(types, edges, shapes=shapes, flops=rng.uniform(0, 1e8, n).tolist())


def machine(d: int = 2) -> Platform:
    devices = tuple(
        PlatformDevice(
            name=f"d{i}",
            kind="gpu",
            peak_flops_per_s={"f32": 1e11 * (i + 1)},
            memory_bandwidth_bytes_per_s=1e10,
            memory_bytes=1e9,
            launch_s=2e-4,
            op_overhead_s=1e-4,
            efficiency=dict.fromkeys(OpClass, 1.0),
            memory_efficiency=0.5,
        )
        for i in range(d)
    )
    off = ~np.eye(d, dtype=np.bool_)
    return Platform("m", "A machine.", devices, np.where(off, 1e-4, 0.0), np.where(off, 1e9, np.inf))


def segments(rng: np.random.Generator, graph: ComputationGraph, count: int, d: int) -> IntArray:
    """[count, N] placements in runs of ten or so ops."""
    runs = rng.integers(0, d, (count, graph.num_ops))
    keep = rng.random((count, graph.num_ops)) < 0.1
    first = np.maximum.accumulate(np.where(keep, np.arange(graph.num_ops), 0), axis=1)
    return np.take_along_axis(runs, first, axis=1)


def planted(graph: ComputationGraph, prior: Platform, rng: np.random.Generator) -> tuple[np.ndarray, CostModel]:
    """Factors [D, C], and the costs they make, with overheads and links other than the prior's."""
    d = prior.num_devices
    op_time = np.exp(rng.uniform(-1.5, 1.5, (d, 1)) + rng.uniform(-0.4, 0.4, (d, len(OP_CLASSES))))
    time_s = roofline(graph, prior).time_s(op_time, np.linspace(5e-5, 3e-4, d))
    off = ~np.eye(d, dtype=np.bool_)
    link_s, rate = np.where(off, 3e-4, 0.0), np.where(off, 4e8, np.inf)
    costs = CostModel(time_s, np.linspace(1e-4, 6e-4, d), link_s, rate, CostSource.FILE)
    return op_time, costs


def sequential_latency_s(graph: ComputationGraph, costs: CostModel, placements: IntArray) -> np.ndarray:
    return HeteroCosts.of(graph, costs).latency_s(placements)


def observe(graph: ComputationGraph, costs: CostModel, placements: IntArray) -> list[Observation]:
    latency_s = sequential_latency_s(graph, costs, placements)
    return [Observation(p, float(s)) for p, s in zip(placements, latency_s, strict=True)]


@given(st.integers(0, 10_000))
def test_features_times_parameters_are_the_sequential_latency(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, prior = random_graph(rng, int(rng.integers(2, 40))), machine(3)
    op_time, costs = planted(graph, prior, rng)
    placements = rng.integers(0, 3, (4, graph.num_ops))
    rows = sequential_features(graph, roofline(graph, prior), placements)
    s_per_byte = 1.0 / costs.link_bandwidth_bytes_per_s
    tables = (op_time, np.linspace(5e-5, 3e-4, 3), costs.launch_s, costs.link_latency_s, s_per_byte)
    values = np.concatenate([np.asarray(table).reshape(-1) for table in tables])
    assert rows @ values == pytest.approx(sequential_latency_s(graph, costs, placements))


@pytest.mark.parametrize("seed", range(3))
def test_planted_figures_come_back_from_noise_free_latencies(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, prior = random_graph(rng, 150), machine()
    op_time, truth = planted(graph, prior, rng)
    fitted = calibrate(graph, prior, observe(graph, truth, segments(rng, graph, 60, 2)), trust=EXACT)
    off = ~np.eye(2, dtype=np.bool_)
    assert fitted.factors.op_time == pytest.approx(op_time, rel=0.02)
    assert fitted.factors.op_overhead_s == pytest.approx([5e-5, 3e-4], rel=0.05)
    assert fitted.factors.launch_s == pytest.approx(truth.launch_s, rel=0.02)
    assert fitted.factors.link_bandwidth_bytes_per_s[off] == pytest.approx(4e8, rel=0.02)
    assert np.abs(fitted.relative_errors).max() < 1e-4


def test_placements_never_seen_are_foretold_from_noisy_ones() -> None:
    rng = np.random.default_rng(5)
    graph, prior = random_graph(rng, 150), machine(3)
    _, truth = planted(graph, prior, rng)
    seen, unseen = segments(rng, graph, 60, 3), segments(rng, graph, 100, 3)
    noisy = [replace(o, latency_s=o.latency_s * np.exp(0.02 * rng.normal())) for o in observe(graph, truth, seen)]
    expected_s = sequential_latency_s(graph, truth, unseen)
    before_s = sequential_latency_s(graph, analytic_costs(graph, prior), unseen)
    after_s = sequential_latency_s(graph, calibrate(graph, prior, noisy).costs, unseen)
    assert np.abs(np.log(before_s / expected_s)).mean() > 0.1
    assert np.abs(np.log(after_s / expected_s)).mean() < 0.02


def test_without_observations_the_prior_stays_as_it_is() -> None:
    graph, prior = random_graph(np.random.default_rng(0), 30), machine()
    analytic = analytic_costs(graph, prior)
    costs = calibrate(graph, prior, []).costs
    assert np.array_equal(costs.time_s, analytic.time_s)
    assert np.array_equal(costs.launch_s, analytic.launch_s)
    assert costs.source is CostSource.ANALYTIC


def test_a_device_without_observations_keeps_its_costs_and_links() -> None:
    rng = np.random.default_rng(1)
    graph, prior = random_graph(rng, 60), machine(3)
    _, truth = planted(graph, prior, rng)
    costs = calibrate(graph, prior, observe(graph, truth, segments(rng, graph, 20, 2)), trust=EXACT).costs
    analytic = analytic_costs(graph, prior)
    assert costs.source is CostSource.CALIBRATED
    assert costs.time_s[:, 2] == pytest.approx(analytic.time_s[:, 2])
    assert costs.launch_s[2] == analytic.launch_s[2]
    assert costs.link_latency_s[2, :2] == pytest.approx(analytic.link_latency_s[2, :2])
    assert costs.link_bandwidth_bytes_per_s[:2, 2] == pytest.approx([1e9, 1e9])
    assert not np.allclose(costs.time_s[1:, :2], analytic.time_s[1:, :2], rtol=0.05)


def test_one_latency_of_one_device_scales_that_device_as_a_whole() -> None:
    graph, prior = random_graph(np.random.default_rng(2), 60), machine()
    alone = np.zeros(60, dtype=np.int64)
    before_s = float(sequential_latency_s(graph, analytic_costs(graph, prior), alone[None])[0])
    fitted = calibrate(graph, prior, [Observation(alone, 4 * before_s)], trust=Trust(observed=1e-3))
    assert fitted.relative_errors == pytest.approx([0.0], abs=0.01)
    ratio = fitted.costs.time_s[1:, 0] / analytic_costs(graph, prior).time_s[1:, 0]
    assert ratio.min() > 2.0
    assert ratio.max() < 7.0


@given(st.integers(0, 10_000))
def test_costs_are_never_negative_and_nan_only_where_unsupported(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, prior = random_graph(rng, int(rng.integers(2, 30))), machine(3)
    last = prior.devices[2].model_copy(update={"unsupported": frozenset({"Relu"})})
    lame = replace(prior, devices=(*prior.devices[:2], last))
    placements = rng.integers(0, 2, (int(rng.integers(1, 8)), graph.num_ops))
    wild = [Observation(p, float(np.exp(rng.uniform(-25, 10)))) for p in placements]
    fitted = calibrate(graph, lame, wild)
    costs, relu = fitted.costs, np.array([t == "Relu" for t in graph.op_types])
    assert np.array_equal(np.isnan(costs.time_s), np.outer(relu, [False, False, True]))
    assert np.nanmin(costs.time_s) >= 0
    assert np.isfinite(sequential_latency_s(graph, costs, placements)).all()
    assert sequential_latency_s(graph, costs, placements) == pytest.approx(fitted.simulated_s)


def test_several_graphs_inform_one_platform() -> None:
    rng = np.random.default_rng(4)
    prior, graphs = machine(), [random_graph(rng, n) for n in (40, 50, 60)]
    op_time = np.full((2, len(OP_CLASSES)), [[2.0], [0.5]])
    observations = []
    for g in graphs:
        time_s = roofline(g, prior).time_s(op_time, prior.op_overhead_s)
        truth = replace(analytic_costs(g, prior), time_s=time_s)
        observations += [replace(o, graph=g) for o in observe(g, truth, segments(rng, g, 20, 2))]
    fitted = calibrate(graphs[0], prior, observations, trust=EXACT)
    assert fitted.factors.op_time == pytest.approx(op_time, rel=0.02)
    table = platform_calibration(prior, fitted.factors, ["d1"], "planted")
    again = analytic_costs(graphs[0], replace(prior, calibration=table))
    assert again.time_s[:, 1] == pytest.approx(fitted.costs.time_s[:, 1])


def test_the_same_observations_give_the_same_figures() -> None:
    rng = np.random.default_rng(6)
    graph, prior = random_graph(rng, 80), machine()
    observations = observe(graph, planted(graph, prior, rng)[1], segments(rng, graph, 30, 2))
    first, second = (calibrate(graph, prior, observations).costs.time_s for _ in range(2))
    assert np.array_equal(first, second)


def test_op_classes_are_told_apart_by_type() -> None:
    graph = graph_from_edges(list(TYPES), [])
    assert classes_of(graph).tolist() == list(range(len(OP_CLASSES)))


def test_observations_that_cannot_be_are_refused() -> None:
    rng = np.random.default_rng(7)
    graph, prior = random_graph(rng, 10), machine()
    here = np.zeros(10, dtype=np.int64)
    update = {"unsupported": frozenset({"Parameter"})}
    lame = replace(prior, devices=tuple(d.model_copy(update=update) for d in prior.devices))
    refused: list[tuple[Platform, Observation, str]] = [
        (prior, Observation(here, 0.0), "must be positive"),
        (prior, Observation(here + 2, 1.0), "device indices below 2"),
        (prior, Observation(here[:5], 1.0), r"must be \[10\]"),
        (lame, Observation(here, 1.0), "does not support"),
    ]
    for given_prior, observation, message in refused:
        with pytest.raises(ValueError, match=message):
            calibrate(graph, given_prior, [observation])
    with pytest.raises(ValueError, match="every share of Trust must be positive"):
        Trust(observed=0.0)
