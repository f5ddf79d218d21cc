"""Advantages of plans, which are their rewards less a baseline.

Legend: B plans of an update, T steps of an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.learned.options import Baseline, TrainingOptions

IN_UNIT_SCALE = (Baseline.BATCH, Baseline.RANKS)
"""Baselines whose advantages are scaled to unit scale: divided by the standard deviation of the rewards."""

ADVANTAGE_LIMIT = 3.0
"""Clip advantages in unit scale to plus or minus this many standard deviations."""

NUM_RECENT = 10
"""Number of the latest plans over which the baseline RECENT is the mean (Placeto A.7)."""


class Advantages:
    """Advantages under the baseline of the options, which may depend on rewards of earlier updates."""

    def __init__(self, options: TrainingOptions) -> None:
        self._options = options
        self._recent: list[FloatArray] = []
        self._num_rewards = 0
        self._mean_reward = 0.0

    def of(self, rewards: FloatArray, step: IntArray) -> FloatArray:
        """Return advantages in the shape of the rewards: discounted, and in unit scale if the baseline asks for it.

        Args:
            rewards: Rewards of plans [B], or of their steps [B, T].
            step: Position of each plan in its episode, from 1, for the discount [B].
        """
        options = self._options
        if options.baseline is Baseline.RANKS:
            from scipy.stats import rankdata  # not at the top: it takes long to load

            rewards = rankdata(rewards, axis=0)
        weights = rewards - self._baseline(rewards)
        if options.baseline in IN_UNIT_SCALE:
            weights /= max(float(rewards.std(axis=0).mean()), options.advantage_floor)
            weights = np.clip(weights, -ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)
        return np.asarray((weights.T * options.discount ** step.astype(np.float64)).T, dtype=np.float64)

    def _baseline(self, rewards: FloatArray) -> FloatArray | float:
        """Return the baseline of rewards [B] or [B, T], a number or one for every step [T], and update its history."""
        mean = np.asarray(rewards.mean(axis=0), dtype=np.float64)
        if self._options.baseline in IN_UNIT_SCALE:
            return mean
        if self._options.baseline is Baseline.RUNNING:
            baseline = self._mean_reward if self._num_rewards else float(rewards.mean())
            total = self._num_rewards * self._mean_reward + float(rewards.sum())
            self._num_rewards += rewards.size
            self._mean_reward = total / self._num_rewards
            return baseline
        if self._options.baseline is Baseline.RECENT:
            recent = np.mean(self._recent, axis=0) if self._recent else mean
            self._recent = [*self._recent, *rewards][-NUM_RECENT:]
            return np.asarray(recent, dtype=np.float64)
        return 0.0

    def state(self) -> dict[str, Any]:
        """Return the state for ``restore``, as JSON values by name."""
        recent = np.array(self._recent).tolist()
        return {"num_rewards": self._num_rewards, "mean_reward": self._mean_reward, "recent": recent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by ``state``."""
        self._num_rewards, self._mean_reward = state["num_rewards"], state["mean_reward"]
        self._recent = list(np.array(state["recent"]))
