"""Record of the plans that a training has evaluated, and the rewards that follow from it.

Legend: B plans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.learned.options import Reward, TrainingOptions
from hsdag.methods.learned.states import State
from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import Evaluator, Score

FAILURE_FACTOR = 4.0
"""Value of a plan that failed, as a multiple of the worst value seen."""


class Buffer:
    """Record of evaluated plans: digests of all, the best ones, the worst one, and the reference.

    The reference is the best plan of a single device, or the first plan that did not fail if there is none.
    """

    def __init__(self, options: TrainingOptions, version: int = 0) -> None:
        self.options = options
        self._version = version  # of the evaluator, when it gave the values stored here
        self._seen: dict[int, None] = {}
        self._best: list[tuple[Plan, float]] = []
        self._marks: dict[str, tuple[Plan, float]] = {}

    def __contains__(self, plan: Plan) -> bool:
        return _digest(plan) in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def elites(self) -> list[tuple[Plan, float]]:
        """Return the best distinct plans with their values, as many as are imitated; earlier ones win ties."""
        return self._best[: self.options.elites]

    @property
    def best(self) -> float:
        """Return the best value, infinite while all plans have failed."""
        return self._best[0][1] if self._best else np.inf

    def add(self, plans: Sequence[Plan], scores: Sequence[Score], *, single: bool = False) -> FloatArray:
        """Record evaluated plans and return their values [B], NaN for failures.

        If ``single``, they are plans of single devices, and the best of them becomes the reference.
        """
        for plan, score in zip(plans, scores, strict=True):
            self._seen[_digest(plan)] = None
            if score.failure is not None:
                continue
            if "worst" not in self._marks or score.value > self._marks["worst"][1]:
                self._marks["worst"] = plan, score.value
            if "reference" not in self._marks or (single and score.value < self._marks["reference"][1]):
                self._marks["reference"] = plan, score.value
            self._keep(plan, score.value)
        return np.array([np.nan if score.failure is not None else score.value for score in scores])

    def update(self, evaluator: Evaluator) -> None:
        """Evaluate the stored plans again if the evaluator was recalibrated.

        Plans that fail now are dropped from the best ones; as the worst one or the reference they keep their value.
        """
        if evaluator.version == self._version:
            return
        self._version = evaluator.version
        scores = evaluator.evaluate([plan for plan, _ in self._marks.values()])
        for (name, (plan, value)), score in zip(list(self._marks.items()), scores, strict=True):
            self._marks[name] = plan, value if score.failure is not None else score.value
        best, self._best = [plan for plan, _ in self._best], []
        for plan, score in zip(best, evaluator.evaluate(best), strict=True):
            if score.failure is None:
                self._keep(plan, score.value)

    def rewards(self, values: FloatArray) -> FloatArray:
        """Return rewards [B] of values [B]; a failure, NaN, has FAILURE_FACTOR times the worst value seen."""
        worst, reference = (self._marks[name][1] if self._marks else np.nan for name in ("worst", "reference"))
        if not self._marks and not np.isnan(values).any():  # all values come from penalties
            worst, reference = float(np.max(values)), float(np.min(values))
        if np.isnan(worst) or worst == 0.0:
            return np.zeros(len(values))
        penalised = np.where(np.isnan(values), FAILURE_FACTOR * worst, values)
        if self.options.reward is Reward.INVERSE:
            return np.asarray(1.0 / penalised, dtype=np.float64)
        ratio = penalised / reference
        scaled = {Reward.NEGATIVE: ratio, Reward.SQUARE_ROOT: np.sqrt(ratio), Reward.LOG_RATIO: np.log(ratio)}
        return np.asarray(-scaled[self.options.reward], dtype=np.float64)

    def state(self) -> State:
        """Return the state for ``restore``."""
        plans = [
            [plan.placement.tolist(), None if plan.priority is None else plan.priority.tolist(), value]
            for plan, value in [*self._marks.values(), *self._best]
        ]
        return {"seen": torch.tensor(list(self._seen), dtype=torch.int64)}, {"marks": list(self._marks), "plans": plans}

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Restore a state returned by ``state``."""
        self._seen = dict.fromkeys(tensors["seen"].tolist())
        kept = [
            (Plan(np.array(placement), None if order is None else np.array(order)), value)
            for placement, order, value in state["plans"]
        ]
        self._marks = dict(zip(state["marks"], kept, strict=False))
        self._best = kept[len(self._marks) :]

    def _keep(self, plan: Plan, value: float) -> None:
        if not any(plan == best for best, _ in self._best):
            self._best = sorted([*self._best, (plan, value)], key=lambda pair: pair[1])
            del self._best[max(self.options.elites, 1) :]


def _digest(plan: Plan) -> int:
    return int.from_bytes(hashlib.blake2b(plan.key, digest_size=8).digest(), signed=True)
