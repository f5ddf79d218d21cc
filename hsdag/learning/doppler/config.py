"""DopplerConfig: every choice of DOPPLER, with the paper's values and ours as presets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from hsdag.ir.errors import OptionError
from hsdag.learning.options import Baseline, Ranges, Reward, TrainingOptions

DUAL_OPTIONS = ("width", "layers", "encoder", "wide_features", "mean_of_embeddings", "logit_range", "direct")
"""Options that say what the networks are."""


class Beginning(Enum):
    """What an untrained policy comes close to, by linear functions of wide features."""

    NOTHING = "nothing"  # all choices are equally likely
    HEFT = "heft"
    CRITICAL_PATH = "critical-path"  # stage I's teacher


@dataclass(frozen=True)
class DopplerConfig(TrainingOptions):
    """Hyper-parameters of DOPPLER. Raises OptionError for wrong ones."""

    plans_per_update: int = 64
    kept_per_update: int | None = 16
    epochs: int = 1
    learning_rate: float = 1e-3
    last_learning_rate: float = 1e-4
    entropy: float = 1e-3
    baseline: Baseline = Baseline.RANKS
    elites: int = 4
    imitation_weight: float = 0.05
    width: int = 64
    """Width of all hidden layers."""
    layers: int = 3
    """Rounds of messages, K of eq. 2."""
    encoder: str = "both-ways"
    """How messages are passed: messages (eq. 2), both-ways, sage-pool, gcn, gat, gin or sage."""
    learns_order: bool = True
    """SEL selects ops; without it, CRITICAL PATH does (Table 3: PLC)."""
    learns_devices: bool = True
    """PLC places ops; without it, CRITICAL PATH does (Table 3: SEL)."""
    wide_features: bool = True
    """Use more features of ops and devices than the paper's five each; these are relative to the other devices."""
    mean_of_embeddings: bool = True
    """Average embeddings over paths and over the ops of a device, where the paper sums them."""
    logit_range: float | None = 12.0
    """Scores of SEL are squashed into plus or minus this range; None: unbounded, as in the paper."""

    direct: bool = True
    """Add learned linear functions of the features of ops and devices to scores and logits; not in the paper."""
    begins_as: Beginning = Beginning.CRITICAL_PATH
    """What the policy comes close to before it has learned anything."""
    own_scores: bool = True
    """Learn a score of every op, and of every op on every device, beside the networks; not in the paper."""
    simulated_updates: int = 0
    """Where plans are measured, updates from simulated ones before (stage II before stage III), within a fifth of the
    budget and each of as many plans as where all are simulated."""
    initial: str | None = None
    """Policy file of 'hsdag train' to begin with, which --init gives: its plans come first, stage I is left out, and
    its networks replace the options that describe networks."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("2 to 4,096", lambda x: 2 <= x <= 4_096, "width"),
        ("1 to 64", lambda x: 1 <= x <= 64, "layers"),
        ("at least 0", lambda x: x >= 0, "simulated_updates"),
        ("above 0 or None", lambda x: x > 0, "logit_range"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.learns_order or self.learns_devices):
            raise OptionError("one of learns_order and learns_devices must be true: there is nothing else to learn")
        if self.begins_as is not Beginning.NOTHING and not self.wide_features:
            raise OptionError(f"begins_as={self.begins_as.value} needs wide_features; begins_as=nothing does without")

    @staticmethod
    def few() -> DopplerConfig:
        """The default where every plan is measured: simulated ones first, smaller updates, and weights by reward, which
        keep noise small."""
        return DopplerConfig(plans_per_update=8, kept_per_update=None, baseline=Baseline.BATCH, simulated_updates=100)

    @staticmethod
    def paper() -> DopplerConfig:
        """The paper to the letter: §4, §5, §6; App. E; 8,000 episodes, as for its Llama graphs."""
        return DopplerConfig(
            updates=8_000,
            plans_per_update=1,
            kept_per_update=None,
            epochs=1,
            learning_rate=1e-4,
            last_learning_rate=1e-7,
            exploration=0.2,
            last_exploration=0.0,
            entropy=1e-2,
            last_entropy=1e-2,
            reward=Reward.NEGATIVE,
            baseline=Baseline.RUNNING,
            clip=None,
            elites=0,
            teacher_updates=200,
            single_devices_first=True,
            max_grad_norm=0.0,
            width=128,
            encoder="messages",
            wide_features=False,
            mean_of_embeddings=False,
            logit_range=None,
            direct=False,
            begins_as=Beginning.NOTHING,
            own_scores=False,
        )
