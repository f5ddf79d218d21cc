"""Costs of divided models: shards take their part of the whole op, and factors follow from what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.build import graph_of
from hsdag.ir.shards.rewrite import ShardedModel, shapes_of, shard
from hsdag.runtime.costs.shard_costs import ShardFactors, fitted_factors, sharded_costs, simulated_s
from hsdag.runtime.costs.work_conserving_costs import PartTable, WorkConservingCosts
from hsdag.runtime.problem.schedule_problem import CostSource

pytestmark = pytest.mark.usefixtures("weights_take_no_time")


def convolutions(bounds: int) -> tuple[WorkConservingCosts, ShardedModel]:
    """Two convolutions of 16 rows, which two devices of one second an op divide at some row."""
    weights = op.constant(np.ones((4, 4, 3, 3), np.float32))
    x = parameter = op.parameter([1, 4, 16, 8], np.float32)
    for _ in range(2):
        x = op.convolution(x, weights, [1, 1], [1, 1], [1, 1], [1, 1])
    model = ov.Model([op.result(x)], [parameter], "convolutions")
    graph = graph_of(model)
    op_s = np.where(np.isin(graph.op_types, "Convolution")[:, None], 1.0, np.zeros((1, 2)))
    costs = WorkConservingCosts(PartTable(graph, op_s), np.repeat([1.0, 0.1, 1e-5], [2, 2, 4]), CostSource.MEASURED)
    shapes = shapes_of(model, graph)
    region = shapes.region("rows", max(v for v in range(graph.num_ops) if shapes.runs[v]), 2)
    assert region is not None
    divided = replace(region, shares={0: (0, bounds), 1: (bounds, 16)})
    return costs, shard(model, graph, [divided], [0] * graph.num_ops, "AB")


def test_shards_do_the_work_of_the_whole_and_the_halo() -> None:
    costs, found = convolutions(4)
    own = sharded_costs(costs, found).table.op_s[np.arange(len(found.devices)), found.devices]
    is_shard = [v >= 0 for v in found.origin]
    assert own[is_shard].sum() == pytest.approx(2.0 + 2 * 1 / 16)  # a row of the first one for either device


def test_a_divided_model_takes_its_longest_share_and_what_boundaries_take() -> None:
    costs, found = convolutions(8)
    free = replace(costs, parameters=np.repeat([1.0, 0.0, 0.0], [2, 2, 4]))
    share_s = (8 + 9) / 16
    assert simulated_s(sharded_costs(free, found), found.devices) == pytest.approx(share_s, abs=1e-3)
    assert simulated_s(sharded_costs(costs, found), found.devices) > share_s + 0.1


def test_factors_are_those_with_which_simulations_give_what_was_measured() -> None:
    costs, even = convolutions(8)
    models, true = [even, convolutions(4)[1], convolutions(2)[1]], ShardFactors(1.1, 2.0)
    measured_s = [simulated_s(sharded_costs(costs, each, true), each.devices) for each in models]
    found = fitted_factors(costs, models, measured_s)
    simulated = [simulated_s(sharded_costs(costs, each, found), each.devices) for each in models]
    assert simulated == pytest.approx(measured_s, rel=0.03)
    assert found.boundary > 1.2
