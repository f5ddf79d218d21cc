"""A chain of ops on two devices, on which launches cost more than the profile says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hsdag.ir.graph.coarsen import coarsen
from hsdag.ir.graph.computation_graph import FloatArray, graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.evaluators.base import Evaluator, Score

NUM = 12
GRAPH = graph_from_edges(["Add"] * NUM, [(v - 1, v) for v in range(1, NUM)], output_bytes=[1000] * NUM)
PROBLEM = Problem(coarsen(GRAPH, Partition.identity(NUM)), ("a", "b"), np.ones((NUM, 2), dtype=np.bool_))
RANDOM_S = np.random.default_rng(0).uniform(1e-3, 3e-3, (NUM, 2))


def costs(launch_s: float, time_s: FloatArray = RANDOM_S) -> HeteroCosts:
    links: dict[str, Any] = {"launch_s": launch_s, "link_bandwidth_bytes_per_s": 1e12}
    return HeteroCosts.of(GRAPH, ScheduleProblem.from_graph(GRAPH, time_s, ("a", "b"), **links))


class Device(Evaluator):
    """Stands for the hardware, and knows what it was asked."""

    def __init__(self, launch_s: float = 1e-3, failing: Sequence[Plan] = (), time_s: FloatArray = RANDOM_S) -> None:
        self.true, self.failing, self.asked = costs(launch_s, time_s), failing, list[Plan]()

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        self.asked += plans
        values = self.true.latency_s(np.stack([plan.placement for plan in plans])).tolist()
        scored = zip(plans, values, strict=True)
        return [Score(failure="crashed") if plan in self.failing else Score(value) for plan, value in scored]
