"""GdpConfig: every choice of GDP, with the paper's values and ours as presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hsdag.ir.errors import OptionError
from hsdag.learning.options import Baseline, Ranges, Reward, TrainingOptions


@dataclass(frozen=True)
class GdpConfig(TrainingOptions):
    """Hyper-parameters of GDP. Raises OptionError for wrong ones."""

    plans_per_update: int = 32
    epochs: int = 4
    learning_rate: float = 2e-3
    last_learning_rate: float = 3e-4
    entropy: float = 0.03
    elites: int = 1
    imitation_weight: float = 0.3
    patience: int = 25
    width: int = 64
    """Width of embeddings and of attention."""
    layers: int = 3
    """Rounds of messages."""
    encoder: str = "sage-pool"
    """How messages are passed: sage-pool (eq. 2 and 3), messages, both-ways, gcn, gat, gin or sage."""
    blocks: int = 2
    """Layers of attention."""
    heads: int = 4
    """Heads of attention; they share the width."""
    segment: int = 128
    """Units of a segment; each attends to its own segment and to the one before it."""
    relative: bool = True
    """Tell attention how far apart units are in topological order; the paper leaves positions to the graph encoder."""
    costs: bool = True
    """Use the times of units on every device, their transfers and levels where they are known; not in the paper."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1", lambda x: x >= 1, "width layers blocks heads segment"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise OptionError(f"option width must be a multiple of heads, {self.heads}, not {self.width}")

    @staticmethod
    def paper() -> GdpConfig:
        """The paper's policy and reward: §3.1 to §3.3, square root of the time, PPO, mean of earlier rewards."""
        return GdpConfig(
            plans_per_update=20,
            epochs=20,
            learning_rate=1e-3,
            last_learning_rate=1e-3,
            entropy=1e-2,
            last_entropy=1e-2,
            reward=Reward.SQUARE_ROOT,
            baseline=Baseline.RUNNING,
            elites=0,
            patience=0,
            max_grad_norm=0.0,
            width=64,
            segment=128,
            relative=False,
            costs=False,
        )
