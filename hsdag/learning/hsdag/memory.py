"""Memory: what a search has evaluated so far, and what it is worth. Legend: U placement units."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch

from hsdag.evaluators.base import Evaluation
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.learning.hsdag.config import HsdagConfig, Reward

DIGEST_BYTES = 16


class Memory:
    """Placements seen, the best of them, the reference latency and the worst latency."""

    def __init__(self, config: HsdagConfig) -> None:
        self._config = config
        self._seen: dict[bytes, None] = {}
        self._best: IntArray | None = None
        self.best_s = math.inf
        self.worst_s = 0.0
        self.reference_s = math.inf  # best single device, else the first success

    def __contains__(self, placement: IntArray) -> bool:
        return _digest(placement) in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def best(self) -> IntArray | None:
        """[U] the fastest placement evaluated, None before the first success."""
        return self._best

    def add(self, placements: Sequence[IntArray], results: Sequence[Evaluation], *, single: bool) -> FloatArray:
        """Enter evaluated placements; their latencies in seconds, NaN where they failed.

        ``single`` says that they are single-device placements, which set the reference.
        """
        latencies = np.full(len(placements), np.nan)
        for i, (placement, result) in enumerate(zip(placements, results, strict=True)):
            self._seen[_digest(placement)] = None
            if result.latency_s is None:
                continue
            latencies[i] = result.latency_s
            self.worst_s = max(self.worst_s, result.latency_s)
            if result.latency_s < self.best_s:
                self.best_s, self._best = result.latency_s, placement.copy()
            if single or math.isinf(self.reference_s):
                self.reference_s = min(self.reference_s, result.latency_s)
        return latencies

    def rewards(self, latencies_s: FloatArray) -> FloatArray:
        """Rewards of latencies; a failure counts as ``failure_factor`` times the worst latency seen."""
        if self.worst_s == 0.0:
            return np.zeros(len(latencies_s))
        penalised = np.where(np.isnan(latencies_s), self._config.failure_factor * self.worst_s, latencies_s)
        if self._config.reward is Reward.INVERSE:
            return np.asarray(1.0 / penalised, dtype=np.float64)
        return np.asarray(np.log(self.reference_s / penalised), dtype=np.float64)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state as tensors by name."""
        seen = np.frombuffer(b"".join(self._seen), dtype=np.uint8).reshape(-1, DIGEST_BYTES).copy()
        best = np.zeros(0, dtype=np.int64) if self._best is None else self._best
        latencies = np.asarray([self.best_s, self.worst_s, self.reference_s])
        return {
            "memory.seen": torch.from_numpy(seen),
            "memory.best": torch.from_numpy(best.copy()),
            "memory.latencies_s": torch.from_numpy(latencies),
        }

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take over the state that ``tensors`` gave."""
        rows = tensors["memory.seen"].numpy()
        self._seen = {row.tobytes(): None for row in rows}
        best = tensors["memory.best"].numpy()
        self._best = best.astype(np.int64) if len(best) else None
        self.best_s, self.worst_s, self.reference_s = tensors["memory.latencies_s"].tolist()


def _digest(placement: IntArray) -> bytes:
    data = np.ascontiguousarray(placement, dtype=np.int64).tobytes()
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
