"""Memory: what a search has evaluated so far, and its scores. Legend: U placement units."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from hsdag.evaluators.base import Evaluator, Score
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.learning.hsdag.config import HsdagConfig, Reward
from hsdag.runtime.problems.plan import Plan

DIGEST_BYTES = 16


class Memory:
    """Placements seen, and two of them with their values: the worst, and the best single device or first success."""

    def __init__(self, config: HsdagConfig) -> None:
        self._config = config
        self._seen: dict[bytes, None] = {}
        self._held: dict[str, tuple[IntArray, float]] = {}

    def __contains__(self, placement: IntArray) -> bool:
        return _digest(placement) in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, placements: Sequence[IntArray], scores: Sequence[Score], *, single: bool) -> FloatArray:
        """Enter evaluated placements, those of ``single`` devices for reference; their values, NaN for failures."""
        for placement, score in zip(placements, scores, strict=True):
            self._seen[_digest(placement)] = None
            if score.failure is not None:
                continue
            entry = placement.copy(), score.value
            if "worst" not in self._held or score.value > self._held["worst"][1]:
                self._held["worst"] = entry
            if "reference" not in self._held or (single and score.value < self._held["reference"][1]):
                self._held["reference"] = entry
        return np.array([np.nan if score.failure is not None else score.value for score in scores])

    def rescore(self, evaluator: Evaluator) -> None:
        """Have the placements that it holds scored again after a recalibration; failures keep their value."""
        scores = evaluator.evaluate([Plan(placement) for placement, _ in self._held.values()])
        for (name, (placement, value)), score in zip(list(self._held.items()), scores, strict=True):
            self._held[name] = placement, value if score.failure is not None else score.value

    def rewards(self, values: FloatArray) -> FloatArray:
        """Rewards of values; a failure, NaN, counts as ``failure_factor`` times the worst value seen."""
        if not self._held or self._held["worst"][1] == 0.0:
            return np.zeros(len(values))
        penalised = np.where(np.isnan(values), self._config.failure_factor * self._held["worst"][1], values)
        if self._config.reward is Reward.INVERSE:
            return np.asarray(1.0 / penalised, dtype=np.float64)
        return np.asarray(np.log(self._held["reference"][1] / penalised), dtype=np.float64)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state as tensors by name."""
        seen = np.frombuffer(b"".join(self._seen), dtype=np.uint8).reshape(-1, DIGEST_BYTES).copy()
        tensors = {"memory.seen": torch.from_numpy(seen)}
        for name, (placement, value) in self._held.items():
            tensors[f"memory.{name}.placement"] = torch.from_numpy(placement.copy())
            tensors[f"memory.{name}.value"] = torch.tensor(value, dtype=torch.float64)
        return tensors

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take over the state that ``tensors`` gave."""
        self._seen = {row.tobytes(): None for row in tensors["memory.seen"].numpy()}
        for name in ("worst", "reference"):
            if f"memory.{name}.value" in tensors:
                placement = tensors[f"memory.{name}.placement"].numpy().astype(np.int64)
                self._held[name] = placement, float(tensors[f"memory.{name}.value"])


def _digest(placement: IntArray) -> bytes:
    data = np.ascontiguousarray(placement, dtype=np.int64).tobytes()
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
