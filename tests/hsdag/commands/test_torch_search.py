"""Placers judged by measured makespans on logical torch devices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from hsdag.commands.torch_search import search_measured
from hsdag.evaluators.base import Score
from hsdag.evaluators.recording import Budget
from hsdag.evaluators.torch import random_inputs, run_workload, workload_graph
from hsdag.evaluators.torch.measured import TorchEvaluator
from hsdag.evaluators.torch.measured_costs import measured_problem
from hsdag.ir.errors import OptionError, SearchError
from hsdag.models import Workload
from hsdag.models.chainmm import ChainSizes, chainmm
from hsdag.runtime.problems.cost_model import CostSource
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.torch_backend import logical_devices

K = 4
DEVICES = logical_devices(K)
METHODS = ("heft", "critical-path", "etf", "ea", "sa", "hsdag", "doppler")


@cache
def tiny() -> tuple[Workload, ScheduleProblem]:
    workload = chainmm(K, ChainSizes(size=32))
    return workload, measured_problem(workload, DEVICES)


def free_links(costs: ScheduleProblem) -> ScheduleProblem:
    """Copies cost nothing and ops alike, so that methods that compute spread them."""
    return replace(
        costs,
        time_s=np.where(costs.time_s > 0, 1.0, 0.0),
        link_latency_s=np.zeros((K, K)),
        link_bandwidth_bytes_per_s=np.full((K, K), np.inf),
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_best_of_a_measured_search_is_what_the_evaluator_measured_fastest(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, costs = tiny()
    measured: dict[Plan, Score] = {}
    original = TorchEvaluator._measured

    def noted(self: TorchEvaluator, plan: Plan) -> Score:
        measured[plan] = original(self, plan)
        return measured[plan]

    monkeypatch.setattr(TorchEvaluator, "_measured", noted)
    budget = Budget(seconds=10.0, evaluations=K + 3)
    found = search_measured(workload, DEVICES, method, budget, costs=free_links(costs))
    assert len(measured) == len(found.events) > K
    assert {event.plan: event.score for event in found.events} == measured
    fastest = min(measured, key=lambda key: measured[key].value)
    assert found.latency_s == measured[fastest].value
    assert found.problem.expand(fastest.placement).tolist() == found.placement.tolist()


def test_the_placement_found_is_legal_and_computes_what_one_device_does() -> None:
    workload, costs = tiny()
    found = search_measured(workload, DEVICES, "critical-path", Budget(evaluations=K + 4), costs=costs)
    assert all(found.problem.is_legal(event.plan.placement) for event in found.events)
    inputs = random_inputs(workload_graph(workload))
    spread, alone = (
        run_workload(workload, placement, DEVICES, inputs).outputs
        for placement in (found.placement, np.zeros_like(found.placement))
    )
    assert all(torch.equal(spread[name], x) for name, x in alone.items())


def test_costs_are_measured_for_every_op_that_computes_and_every_link() -> None:
    workload, costs = tiny()
    computes = np.array([node.run is not None for node in workload_graph(workload).nodes])
    assert (costs.time_s[computes] > 0).all()
    assert (costs.time_s[~computes] == 0).all()
    off = ~np.eye(K, dtype=bool)
    assert (costs.link_latency_s[off] > 0).all()
    assert np.isfinite(costs.link_bandwidth_bytes_per_s[off]).all()
    assert costs.source is CostSource.MEASURED


def test_a_measured_search_that_nothing_fits_into_says_why() -> None:
    workload, costs = tiny()
    small = logical_devices(K, memory_bytes=100)
    with pytest.raises(SearchError, match=r"none of \d+ placements of .* ran on the torch devices: .*out of memory"):
        search_measured(workload, small, "sa", Budget(evaluations=K), costs=costs)


def test_an_unknown_method_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(OptionError, match="unknown method 'luck'; choose one of"):
        search_measured(tiny()[0], DEVICES, "luck")
