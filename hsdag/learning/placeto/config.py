"""PlacetoConfig: every choice of Placeto, with the paper's values and ours as presets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from hsdag.learning.options import Baseline, Ranges, Reward, TrainingOptions

OWN = "placeto"
"""The encoder of the paper."""


class Start(Enum):
    """The placement that an episode begins with."""

    SINGLE = "single"  # all groups on one device, drawn for each episode
    RANDOM = "random"  # every group on a device of its own draw


@dataclass(frozen=True)
class PlacetoConfig(TrainingOptions):
    """Hyper-parameters of Placeto. Raises OptionError for wrong ones."""

    plans_per_update: int = 8
    epochs: int = 2
    learning_rate: float = 3e-3
    last_learning_rate: float = 3e-4
    elites: int = 1
    patience: int = 25
    sweeps: int = 1
    """Times that an episode visits every group (A.7: n)."""
    start: Start = Start.SINGLE
    """What an episode begins with: single or random."""
    intermediate: bool = True
    """Reward every step by what it gains (A.4), which has a plan evaluated per step; else the last one alone."""
    groups: int | None = None
    """Groups that Merge-and-Colocate (A.6) leaves; None: no merging, every unit is a group."""
    step: int = 24
    """Groups that a step places at once; the paper places one."""
    encoder: str = OWN
    """How messages are passed: placeto (A.7), messages, both-ways, sage-pool, gcn, gat, gin or sage."""
    rounds: int = 2
    """Rounds of messages (A.7: k)."""
    width: int = 16
    """Hidden units of the networks that make, pass on and pool embeddings (A.7: d)."""
    embedding: int = 16
    """Width of embeddings (A.7: |E|)."""
    head: int = 128
    """Hidden units of the network that chooses a device."""
    reads_own: bool = True
    """The network that chooses a device is given the features of the group that it places, too."""
    is_mean: bool = True
    """Average messages and pooled embeddings, where the paper sums them."""
    wide_features: bool = True
    """Use types, places in topological order, times on every device, transfers and levels, where the paper has one
    time and the output's size."""
    memory_penalty: float = 2.0
    """Seconds added for each GB that the fullest device is over its memory (A.7: c)."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1 or None", lambda x: x >= 1, "groups"),
        ("at least 1", lambda x: x >= 1, "sweeps step rounds width embedding head"),
        ("at least 0", lambda x: x >= 0, "memory_penalty"),
    )

    @staticmethod
    def paper() -> PlacetoConfig:
        """The paper to the letter: §3, A.4, A.6, A.7."""
        return PlacetoConfig(
            plans_per_update=8,
            epochs=1,
            learning_rate=1e-3,
            last_learning_rate=1e-4,
            entropy=1e-2,
            last_entropy=0.0,
            reward=Reward.NEGATIVE,
            baseline=Baseline.RECENT,
            clip=None,
            elites=0,
            patience=0,
            max_grad_norm=0.0,
            step=1,
            rounds=8,
            width=8,
            embedding=8,
            head=16,
            reads_own=False,
            is_mean=False,
            wide_features=False,
        )
