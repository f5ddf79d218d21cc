"""Memory: what a search has evaluated so far, and its rewards. Legend: U placement units, B plans."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from hsdag.evaluators.base import Evaluator, Score
from hsdag.ir.graph import FloatArray
from hsdag.learning.options import Reward, TrainingOptions
from hsdag.runtime.problems.plan import Plan

DIGEST_BYTES = 16


class Memory:
    """Digests of what was seen; the best, the worst and the elites of it, and the reference.

    That is the best single device, or the first success.
    """

    def __init__(self, options: TrainingOptions) -> None:
        self._options = options
        self._seen: dict[bytes, None] = {}
        self._held: dict[str, tuple[Plan, float]] = {}
        self.elites: list[tuple[Plan, float]] = []

    def __contains__(self, plan: Plan) -> bool:
        return _digest(plan) in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def best(self) -> float:
        """The least value so far, infinite before the first success."""
        return self._held["best"][1] if "best" in self._held else np.inf

    def add(self, plans: Sequence[Plan], scores: Sequence[Score], *, single: bool = False) -> FloatArray:
        """[B] values of evaluated plans, NaN for failures; those of ``single`` devices are references."""
        for plan, score in zip(plans, scores, strict=True):
            self._seen[_digest(plan)] = None
            if score.failure is not None:
                continue
            if score.value < self.best:
                self._held["best"] = plan, score.value
            if "worst" not in self._held or score.value > self._held["worst"][1]:
                self._held["worst"] = plan, score.value
            if "reference" not in self._held or (single and score.value < self._held["reference"][1]):
                self._held["reference"] = plan, score.value
            self._keep(plan, score.value)
        return np.array([np.nan if score.failure is not None else score.value for score in scores])

    def rescore(self, evaluator: Evaluator) -> None:
        """Have the plans that it holds scored again after a recalibration; failures keep their value or are dropped."""
        scores = evaluator.evaluate([plan for plan, _ in self._held.values()])
        for (name, (plan, value)), score in zip(list(self._held.items()), scores, strict=True):
            self._held[name] = plan, value if score.failure is not None else score.value
        elites, self.elites = [plan for plan, _ in self.elites], []
        for plan, score in zip(elites, evaluator.evaluate(elites), strict=True):
            if score.failure is None:
                self._keep(plan, score.value)

    def rewards(self, values: FloatArray) -> FloatArray:
        """[B] rewards of values; a failure, NaN, counts as ``failure_factor`` times the worst value seen."""
        if not self._held or self._held["worst"][1] == 0.0:
            return np.zeros(len(values))
        penalised = np.where(np.isnan(values), self._options.failure_factor * self._held["worst"][1], values)
        if self._options.reward is Reward.INVERSE:
            return np.asarray(1.0 / penalised, dtype=np.float64)
        ratio = penalised / self._held["reference"][1]
        scaled = {Reward.NEGATIVE: ratio, Reward.SQUARE_ROOT: np.sqrt(ratio), Reward.LOG_RATIO: np.log(ratio)}
        return np.asarray(-scaled[self._options.reward], dtype=np.float64)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state as tensors by name."""
        seen = np.frombuffer(b"".join(self._seen), dtype=np.uint8).reshape(-1, DIGEST_BYTES).copy()
        tensors = {"memory.seen": torch.from_numpy(seen)}
        held = {**self._held, **{f"elite{i}": elite for i, elite in enumerate(self.elites)}}
        for name, (plan, value) in held.items():
            tensors[f"memory.{name}.placement"] = torch.from_numpy(plan.placement.copy())
            if plan.order is not None:
                tensors[f"memory.{name}.order"] = torch.from_numpy(plan.order.copy())
            tensors[f"memory.{name}.value"] = torch.tensor(value, dtype=torch.float64)
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over the state that ``tensors`` gave."""
        self._seen = {row.tobytes(): None for row in tensors["memory.seen"].numpy()}
        self._held, self.elites = {}, []
        for name in ("best", "worst", "reference", *(f"elite{i}" for i in range(self._options.elites))):
            if f"memory.{name}.value" not in tensors:
                continue
            order = tensors.get(f"memory.{name}.order")
            plan = Plan(tensors[f"memory.{name}.placement"].numpy(), None if order is None else order.numpy())
            held = plan, float(tensors[f"memory.{name}.value"])
            if name.startswith("elite"):
                self.elites.append(held)
            else:
                self._held[name] = held

    def _keep(self, plan: Plan, value: float) -> None:
        """Keep the best distinct plans as elites; earlier ones win ties."""
        if self._options.elites == 0 or any(plan == each for each, _ in self.elites):
            return
        self.elites = sorted([*self.elites, (plan, value)], key=lambda each: each[1])[: self._options.elites]


def _digest(plan: Plan) -> bytes:
    return hashlib.blake2b(plan.key, digest_size=DIGEST_BYTES).digest()
