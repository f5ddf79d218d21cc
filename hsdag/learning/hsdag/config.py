"""HsdagConfig: every choice of the HSDAG method, with the paper's values and ours as presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hsdag.learning.options import Baseline, Ranges, Reward, TrainingOptions

OWN = "hsdag"
"""The encoder of the paper."""


@dataclass(frozen=True)
class HsdagConfig(TrainingOptions):
    """Hyper-parameters, made for 40 to 300 evaluations (docs/hsdag-method.md). Raises OptionError for wrong ones."""

    plans_per_update: int = 10
    epochs: int = 4
    learning_rate: float = 3e-3
    last_learning_rate: float = 3e-3
    entropy: float = 0.03
    elites: int = 4
    greedy_every: int = 2
    resample_tries: int = 12
    patience: int = 25
    advantage_floor: float = 0.01
    hidden: int = 128
    """Width of all hidden layers (Table 6: hidden_channel)."""
    input_layers: int = 2
    """Layers of the MLP on the node features (Table 6: layer_trans)."""
    encoder: str = OWN
    """How messages are passed: hsdag (Eq. 6), messages, both-ways, sage-pool, gcn, gat, gin or sage."""
    gnn_layers: int = 2
    """Graph convolutions, or rounds of messages (Table 6: layer_gnn)."""
    parsing_layers: int = 2
    """Layers of the edge-score MLP (Table 6: layer_parsingnet)."""
    dropout: float = 0.0
    """Share of hidden units dropped in the encoder (Table 6: 0.2)."""
    residual: bool = True
    """Add a convolution's input to its output, so that neighbours stay distinguishable; not in the paper."""
    sampled_parsing: bool = True
    """Keep a nominated edge with probability equal to its score, so that groupings are explored and learned."""
    normalise: bool = True
    """Scale embeddings and states to unit mean square per unit; without, sums over steps and products of
    embeddings grow by orders of magnitude and higher learning rates diverge. Not in the paper."""
    output_shape: bool = True
    """Use the output-shape features (Table 3)."""
    node_id: bool = True
    """Use the positional features (Table 3: node ID)."""
    structure: bool = True
    """Use fractal dimension and degrees (Table 3: graph structural features)."""
    costs: bool = True
    """Use the times of units on every device, their transfers and levels where they are known; not in the paper."""
    steps: int = 1
    """Plans that follow one another in an episode, each changing the state (Alg. 1; Table 6: update_timestep)."""
    logit_range: float | None = 3.0
    """Device logits are squashed into plus or minus this range, so that a policy never stops exploring; None:
    unbounded, as in the paper."""
    score_bias: float = -2.0
    """Logit of all edge scores before training; below 0, groups begin small."""
    score_range: float | None = 3.0
    """The same for the logits of edge scores."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1", lambda x: x >= 1, "hidden input_layers gnn_layers parsing_layers steps"),
        ("above 0 or None", lambda x: x > 0, "logit_range score_range"),
        ("in [0, 1)", lambda x: 0 <= x < 1, "dropout"),
    )

    @staticmethod
    def paper() -> HsdagConfig:
        """The paper to the letter: §2.4, §2.5, Alg. 1, Table 6; gamma, which it does not give, is 0.99."""
        return HsdagConfig(
            updates=100,
            plans_per_update=20,
            steps=20,
            epochs=4,
            learning_rate=1e-4,
            last_learning_rate=1e-4,
            entropy=0.0,
            reward=Reward.INVERSE,
            baseline=Baseline.NONE,
            discount=0.99,
            clip=None,
            elites=0,
            greedy_every=0,
            resample_tries=1,
            single_devices_first=False,
            max_grad_norm=0.0,
            patience=0,
            dropout=0.2,
            residual=False,
            sampled_parsing=False,
            normalise=False,
            costs=False,
            logit_range=None,
            score_bias=0.0,
            score_range=None,
        )

    @staticmethod
    def many() -> HsdagConfig:
        """For simulated plans, which cost less than an epoch: batches that grow, and a smaller network.

        No self-imitation, which is worth its haste only where a hundred plans are all that can be had.
        """
        return HsdagConfig(elites=0, growth=0.03, hidden=64)
