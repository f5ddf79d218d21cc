"""RnnConfig: every choice of the RNN-based method, with the paper's values and ours as presets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from hsdag.learning.options import Baseline, Ranges, Reward, TrainingOptions


class Scoring(Enum):
    """How attention compares the decoder's state with what was read."""

    ADDITIVE = "additive"  # v . tanh(W s + U h) (Bahdanau et al. 2015)
    DOT = "dot"  # W s . U h, whose memory does not grow with the width


@dataclass(frozen=True)
class RnnConfig(TrainingOptions):
    """Hyper-parameters of the RNN-based method. Raises OptionError for wrong ones."""

    plans_per_update: int = 16
    epochs: int = 2
    learning_rate: float = 1e-2
    last_learning_rate: float = 3e-4
    elites: int = 1
    imitation_weight: float = 0.3
    patience: int = 25
    width: int = 64
    """Units of the LSTM in either direction of the encoder, and in the decoder."""
    scoring: Scoring = Scoring.DOT
    """How attention compares: additive or dot."""
    reads_own: bool = True
    """The decoder is given what was read of the unit that it places; the paper leaves finding it to attention."""
    feeds_context: bool = False
    """The decoder is given what attention found, as by Bahdanau et al.; plans are then judged step by step."""
    costs: bool = True
    """Use the times of units on every device, their transfers and levels where they are known; not in the paper."""

    ranges: ClassVar[Ranges] = (*TrainingOptions.ranges, ("at least 1", lambda x: x >= 1, "width"))

    @staticmethod
    def paper() -> RnnConfig:
        """The paper's policy and reward: §3, square root of the time, REINFORCE with a moving average."""
        return RnnConfig(
            plans_per_update=8,
            epochs=1,
            learning_rate=1e-3,
            last_learning_rate=1e-3,
            entropy=0.0,
            reward=Reward.SQUARE_ROOT,
            baseline=Baseline.RECENT,
            clip=None,
            elites=0,
            patience=0,
            width=512,
            scoring=Scoring.ADDITIVE,
            reads_own=False,
            feeds_context=True,
            costs=False,
        )
