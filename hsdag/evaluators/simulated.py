"""Simulated evaluation: the cost model's latency of sequential execution, deterministic and fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hsdag.evaluators.base import Evaluation, Evaluator
from hsdag.ir.graph import IntArray
from hsdag.runtime.costs.cost_model import CostModel, sequential_latency_s
from hsdag.runtime.problems.problem import Problem


@dataclass(frozen=True, eq=False)
class SequentialEvaluator(Evaluator):
    """Simulated latency under HETERO's execution, one subgraph after another."""

    batch: ClassVar[int] = 1 << 20
    problem: Problem
    costs: CostModel

    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        """One simulated evaluation per placement; unsupported ones fail."""
        if not placements:
            return []
        latency_s = sequential_latency_s(self.problem.units.graph, self.costs, np.stack(placements))
        return [
            Evaluation(float(s))
            if np.isfinite(s)
            else Evaluation(None, "an op is on a device that does not support it")
            for s in latency_s
        ]
