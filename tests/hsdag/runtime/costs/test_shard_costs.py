"""Costs of divided models: shards take their part of the whole op, and factors follow from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.build import graph_of
from hsdag.ir.shards.regions import Region
from hsdag.ir.shards.rewrite import ShardedModel, shard
from hsdag.runtime.costs.shard_costs import ShardFactors, fitted_factors, sharded_costs, simulated_s
from hsdag.runtime.costs.work_conserving_costs import PartTable, WorkConservingCosts
from hsdag.runtime.problem.schedule_problem import CostSource

pytestmark = pytest.mark.usefixtures("weights_take_no_time")


def convolutions(bound: int, axes: Sequence[int | None] = ()) -> tuple[WorkConservingCosts, ShardedModel]:
    """Two convolutions of 16 rows, which two devices of one second an op divide at some row, or each by channels."""
    x = parameter = op.parameter([1, 4, 16, 8], np.float32)
    for _ in range(2):
        x = op.relu(op.convolution(x, np.ones((4, 4, 3, 3), np.float32), [1, 1], [1, 1], [1, 1], [1, 1]))
    model = ov.Model([op.result(x)], [parameter], "convolutions")
    graph = graph_of(model)
    table = PartTable(graph, np.isin(graph.op_types, "Convolution")[:, None] * np.ones((1, 2)))
    costs = WorkConservingCosts(table, np.repeat([1.0, 0.1, 1e-5, 3e-5], 2), CostSource.MEASURED)
    ops = [v for v, kind in enumerate(graph.op_types) if kind in ("Convolution", "Relu")]
    regions = [Region("rows", tuple(ops), (2,) * 4, {0: (0, bound), 1: (bound, 16)})]
    if axes:
        shares = {0: (0, 2), 1: (2, 4)}
        regions = [Region("channels", (v,), (axis,), shares) for v, axis in zip(ops[::2], axes, strict=True)]
    return costs, shard(model, graph, regions, [0] * graph.num_ops, "AB")


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


def test_an_op_without_time_of_its_own_reads_and_writes_joined_pieces() -> None:
    costs, found = convolutions(8, axes=(1, None))
    own = sharded_costs(costs, found).table.op_s[:, 0] / (4 * 4 * 16 * 8)
    taken = {kind: own[np.isin(found.graph.op_types, kind)].tolist() for kind in ("Concat", "Add", "Relu")}
    assert taken == {"Concat": [3e-5], "Add": [3e-5], "Relu": [4e-5, 0.0]}
    timed = replace(costs, table=PartTable(costs.table.graph, costs.table.op_s + 1.0))
    assert sharded_costs(timed, found).table.op_s[np.isin(found.graph.op_types, "Relu")].max() == 1.0


def test_factors_are_those_with_which_simulations_give_what_was_measured() -> None:
    costs, even = convolutions(8)
    models, true = [even, convolutions(4)[1], convolutions(2)[1]], ShardFactors(1.1, 2.0)
    measured_s = [simulated_s(sharded_costs(costs, each, true), each.devices) for each in models]
    found = fitted_factors(costs, models, measured_s)
    simulated = [simulated_s(sharded_costs(costs, each, found), each.devices) for each in models]
    assert simulated == pytest.approx(measured_s, rel=0.03)
    assert found.boundary > 1.2
