"""HsdagConfig: every choice of the HSDAG method, with the paper's values and ours as presets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum

from hsdag.ir.errors import OptionError


class Reward(Enum):
    """What a latency is worth."""

    INVERSE = "inverse"  # 1 / l, paper §2.5
    LOG_RATIO = "log-ratio"  # log(l_ref / l), without a scale


class Baseline(Enum):
    """What is subtracted from a reward."""

    NONE = "none"  # paper, Eq. 14
    BATCH = "batch"  # mean of the placements of one update; advantages get unit scale


@dataclass(frozen=True)
class HsdagConfig:
    """Hyper-parameters, made for 40 to 200 measurements (docs/hsdag-method.md). Raises OptionError for wrong ones."""

    hidden: int = 128
    """Width of all hidden layers (Table 6: hidden_channel)."""
    input_layers: int = 2
    """Layers of the MLP on the node features (Table 6: layer_trans)."""
    gnn_layers: int = 2
    """Graph convolutions (Table 6: layer_gnn)."""
    parsing_layers: int = 2
    """Layers of the edge-score MLP (Table 6: layer_parsingnet)."""
    dropout: float = 0.0
    """Share of hidden units dropped in the encoder (Table 6: 0.2)."""
    residual: bool = True
    """Add a convolution's input to its output, so that neighbours stay distinguishable; not in the paper."""
    levels: int = 1
    """How often the graph is parsed; fixed, where the published code repeats until nothing merges."""
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
    episodes: int = 100_000
    """Upper limit of episodes, one policy update each (Table 6: max_episodes)."""
    steps_per_episode: int = 1
    """States visited per episode; the buffer of Alg. 1 (Table 6: update_timestep)."""
    placements_per_step: int = 5
    """Placements sampled and evaluated from one state; the paper takes one."""
    epochs: int = 6
    """Optimisation steps per update (Table 6: K_epochs)."""
    learning_rate: float = 3e-3
    """Adam's learning rate (Table 6: 1e-4)."""
    discount: float = 1.0
    """gamma of Eq. 14, the i-th step of an episode counting gamma^i; the paper gives no value."""
    reward: Reward = Reward.LOG_RATIO
    """Reward of a placement."""
    baseline: Baseline = Baseline.BATCH
    """Baseline subtracted from the rewards."""
    advantage_floor: float = 0.01
    """Smallest reward spread that is scaled up to one; keeps measuring noise from being amplified."""
    clip: float | None = 0.2
    """Clipping range of the importance weight of every decision; None turns importance weighting off."""
    entropy: float = 0.03
    """Weight of the policy's entropy at the start, relative to unit advantages."""
    entropy_half_life: float = 8.0
    """Updates after which the entropy weight has halved."""
    exploration: float = 2.0
    """Largest standard deviation of the logit shift that all groups of a placement share (see policy.py)."""
    exploration_half_life: float = 8.0
    """Updates after which ``exploration`` has halved."""
    temperature: float = 0.15
    """Temperature of the groups' independent draws; below 1 the shared shift decides most of a placement."""
    logit_range: float | None = 2.0
    """Device logits are squashed into plus or minus this range, so that a policy never stops exploring; None:
    unbounded, as in the paper."""
    elites: int = 8
    """Best placements so far that join every update; 0 turns it off."""
    greedy_every: int = 2
    """Updates from one evaluation of the most probable placement to the next; 0 for never."""
    resample_tries: int = 12
    """Draws spent on finding a placement that was not evaluated before; 1 accepts repetitions."""
    single_devices_first: bool = True
    """Evaluate the single-device placements before learning starts, which gives l_ref."""
    failure_factor: float = 4.0
    """A placement that failed counts as this many times the worst latency seen."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 leaves them alone."""
    patience: int = 25
    """Updates in a row without any new placement after which the search has converged; 0 never."""

    def __post_init__(self) -> None:
        for wanted, is_right, names in _RANGES:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not is_right(value):
                    raise OptionError(f"HSDAG option {name} must be {wanted}, not {value}")

    @staticmethod
    def paper() -> HsdagConfig:
        """The paper to the letter: §2.4, §2.5, Alg. 1, Table 6; gamma, which it does not give, is 0.99."""
        return HsdagConfig(
            dropout=0.2,
            residual=False,
            sampled_parsing=False,
            normalise=False,
            episodes=100,
            steps_per_episode=20,
            placements_per_step=1,
            epochs=4,
            learning_rate=1e-4,
            discount=0.99,
            reward=Reward.INVERSE,
            baseline=Baseline.NONE,
            clip=None,
            entropy=0.0,
            exploration=0.0,
            temperature=1.0,
            logit_range=None,
            elites=0,
            greedy_every=0,
            resample_tries=1,
            single_devices_first=False,
            max_grad_norm=0.0,
            patience=0,
        )

    @staticmethod
    def many() -> HsdagConfig:
        """The default's choices where evaluations are simulated and thousands of them can be had."""
        return HsdagConfig(
            placements_per_step=20, entropy_half_life=24.0, exploration_half_life=24.0, epochs=3, elites=16
        )

    def as_dict(self) -> dict[str, int | float | bool | str | None]:
        """All fields as JSON values."""
        return {k: v.value if isinstance(v, Enum) else v for k, v in asdict(self).items()}


_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("at least 1", lambda x: x >= 1, "hidden input_layers gnn_layers parsing_layers levels episodes epochs"),
    ("at least 1", lambda x: x >= 1, "steps_per_episode placements_per_step resample_tries failure_factor"),
    ("at least 0", lambda x: x >= 0, "elites greedy_every patience entropy exploration max_grad_norm"),
    ("above 0", lambda x: x > 0, "temperature learning_rate entropy_half_life exploration_half_life advantage_floor"),
    ("above 0 or None", lambda x: x > 0, "logit_range clip"),
    ("in [0, 1)", lambda x: 0 <= x < 1, "dropout"),
    ("in (0, 1]", lambda x: 0 < x <= 1, "discount"),
)
"""What an option must be, in words and as a test, and the options that must be so."""
