"""Analytic costs against rooflines worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import coarsen
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.platform import (
    Calibration,
    DeviceCalibration,
    OpClass,
    Platform,
    PlatformDevice,
    load_platform,
)
from hsdag.runtime.problem.schedule_problem import CostSource

FULL = dict.fromkeys(OpClass, 1.0)


def device(name: str = "d", **figures: object) -> PlatformDevice:
    """A device of 1 GFLOP/s and 1 GB/s that adds nothing of its own."""
    plain: dict[str, Any] = {
        "kind": "cpu",
        "peak_flops_per_s": {"f32": 1e9},
        "memory_bandwidth_bytes_per_s": 1e9,
        "memory_bytes": 1e9,
        "launch_s": 0.0,
        "op_overhead_s": 0.0,
        "efficiency": FULL,
        "memory_efficiency": 1.0,
    }
    return PlatformDevice(name=name, **{**plain, **figures})


def platform(*devices: PlatformDevice) -> Platform:
    d = len(devices)
    return Platform("p", devices, np.full((d, d), 1e-6), np.full((d, d), 1e9))


def matmul(flops: float) -> ComputationGraph:
    """x [250] -> MatMul -> [250]: 1000 bytes in, 1000 bytes out."""
    types = ["Parameter", "MatMul", "Result"]
    return graph_from_edges(types, [(0, 1), (1, 2)], shapes=[(250,)] * 3, flops=[0.0, flops, 0.0])


def test_an_op_takes_the_longer_of_arithmetic_and_memory() -> None:
    spec = device(efficiency={**FULL, OpClass.PRODUCT: 0.5}, memory_efficiency=0.25, op_overhead_s=1e-6)
    arithmetic = analytic_costs(matmul(1e6), platform(spec)).time_s[:, 0]
    memory = analytic_costs(matmul(1.0), platform(spec)).time_s[:, 0]
    assert arithmetic.tolist() == pytest.approx([0.0, 1e6 / (0.5 * 1e9) + 1e-6, 0.0])
    assert memory.tolist() == pytest.approx([0.0, 2000 / (0.25 * 1e9) + 1e-6, 0.0])


def test_narrower_precision_moves_fewer_bytes_and_has_its_own_peak() -> None:
    spec = device(peak_flops_per_s={"f32": 1e9, "f16": 4e9}, inference_precision="f16")
    assert analytic_costs(matmul(1e6), platform(spec)).time_s[1, 0] == pytest.approx(1e6 / 4e9)
    assert analytic_costs(matmul(1.0), platform(spec)).time_s[1, 0] == pytest.approx(1000 / 1e9)


def test_weights_count_once_whether_held_by_the_op_or_read_from_a_constant() -> None:
    held = matmul(1.0)
    inside = replace(held, weight_bytes=np.array([0, 4000, 0]))
    types = ["Parameter", "Constant", "MatMul", "Result"]
    read = graph_from_edges(types, [(0, 2), (1, 2), (2, 3)], shapes=[(250,), (1000,), (250,), (250,)])
    assert analytic_costs(inside, platform(device())).time_s[1, 0] == pytest.approx(6000 / 1e9)
    assert analytic_costs(read, platform(device())).time_s[:, 0].tolist() == pytest.approx([0.0, 0.0, 6e-6, 0.0])


def test_a_gather_reads_the_rows_it_returns_and_not_the_whole_table() -> None:
    types = ["Constant", "Parameter", "Gather", "Result"]
    graph = graph_from_edges(types, [(0, 2), (1, 2), (2, 3)], shapes=[(10_000, 50), (2,), (2, 50), (2, 50)])
    assert analytic_costs(graph, platform(device())).time_s[2, 0] == pytest.approx(2 * 400 / 1e9)


def test_what_is_known_before_the_data_costs_nothing() -> None:
    types = ["Parameter", "ShapeOf", "Constant", "Convert", "Reshape", "Relu", "Result"]
    edges = [(0, 1), (2, 3), (0, 4), (1, 4), (4, 5), (3, 5), (5, 6)]
    time_s = analytic_costs(graph_from_edges(types, edges), platform(device(op_overhead_s=1.0))).time_s[:, 0]
    assert (time_s > 0).tolist() == [t == "Relu" for t in types]


def test_an_unsupported_op_is_nan_there_and_costs_elsewhere() -> None:
    costs = analytic_costs(matmul(1e6), platform(device("a"), device("b", unsupported=frozenset({"MatMul"}))))
    assert np.isnan(costs.time_s).tolist() == [[False, False], [False, True], [False, False]]
    assert costs.source is CostSource.ANALYTIC


def test_a_calibration_multiplies_the_roofline_and_replaces_overheads() -> None:
    spec = platform(device("a", op_overhead_s=5.0, launch_s=7.0), device("b", op_overhead_s=5.0, launch_s=7.0))
    op_time = {**FULL, OpClass.PRODUCT: 3.0}
    fitted = DeviceCalibration(op_time=op_time, op_overhead_s=1e-6, launch_s=2e-6)
    calibration = Calibration(provenance="test", devices={"a": fitted})
    costs = analytic_costs(matmul(1e6), replace(spec, calibration=calibration))
    assert costs.time_s[1].tolist() == pytest.approx([3e-3 + 1e-6, 1e-3 + 5.0])
    assert costs.launch_s.tolist() == [2e-6, 7.0]
    assert costs.source is CostSource.CALIBRATED


def test_a_coarse_graph_takes_in_all_what_its_ops_take() -> None:
    fine = graph_from_edges(["MatMul", "Relu", "Concat", "Relu"], [(0, 1), (1, 2), (2, 3)], shapes=[(250,)] * 4)
    spec = platform(device("a", op_overhead_s=1e-6), device("b", unsupported=frozenset({"Concat"})))
    by_op = analytic_costs(fine, spec).time_s
    by_unit = analytic_costs(coarsen(fine, Partition.from_labels(np.array([0, 0, 1, 1]))), spec).time_s
    np.testing.assert_array_equal(by_unit, [by_op[:2].sum(axis=0), by_op[2:].sum(axis=0)])
    assert np.isnan(by_unit).tolist() == [[False, False], [False, True]]


@pytest.mark.slow
def test_the_shipped_calibration_gives_the_latencies_written_beside_it() -> None:
    from hsdag.models import build_model

    spec = load_platform("i9-12900k-uhd770-flex170")
    assert spec.calibration is not None
    fine = read_graph(build_model("resnet50"))
    everything = np.stack([np.full(fine.num_ops, d) for d in range(spec.num_devices)])
    latency_s = HeteroCosts.of(fine, analytic_costs(fine, spec)).latency_s(everything)
    rows = {row["device"]: row for row in spec.calibration.rows if row["model"] == "resnet50"}
    assert set(rows) == {"CPU", "GPU.1"}
    for name, row in rows.items():
        assert latency_s[spec.device_names.index(name)] == pytest.approx(row["calibrated_s"], rel=1e-3)
