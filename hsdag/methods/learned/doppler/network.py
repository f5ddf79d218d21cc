"""Options and networks of ``doppler``: message passing, SEL, which selects ops, and PLC, which places them (§4.2).

Legend: N ops, F features, H and K widths.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Self

import torch
from torch import nn

from hsdag.base.errors import OptionError
from hsdag.methods.learned.decoding import (
    END_LATER,
    FEATURES,
    OWN_PACE,
    OWN_RANGE,
    PAPER_FEATURES,
    SEEN_PACE,
    START_LATER,
    Scores,
)
from hsdag.methods.learned.networks import (
    NUM_PAPER,
    NUM_WIDE,
    Encoder,
    Mlp,
    NetworkInputs,
    linear,
    sum_over_path,
    within,
)
from hsdag.methods.learned.options import (
    ABOVE_0,
    NO_END,
    REINFORCE,
    SIMULATED,
    Baseline,
    Ranges,
    ReusableOptions,
    Reward,
)
from hsdag.runtime.problem.tables import WAY_TO_END

SIMULATED_PLANS, SIMULATED_KEPT = 64, 16
"""Number of plans that an update draws if plans are simulated, and number of those that it learns from."""


class Beginning(Enum):
    """Behaviour that an untrained policy approximates, by linear functions of wide features."""

    NOTHING = "nothing"  # all choices are equally likely
    CRITICAL_PATH = "critical-path"  # the teacher of stage I


@dataclass(frozen=True)
class DopplerConfig(ReusableOptions):
    """Hyper-parameters of ``doppler``. Raises OptionError for a value out of range or options that conflict."""

    plans_per_update: int = 8
    epochs: int = 1
    learning_rate: float = 3e-3
    last_learning_rate: float = 3e-3
    entropy: float = 0.05
    imitation_weight: float = 0.03
    patience: int = 0
    width: int = 16
    """Width of all hidden layers."""
    layers: int = 2
    """Number of rounds of message passing (K of eq. 2)."""
    encoder: str = "both-ways"
    """Layer that passes messages: messages (eq. 2), both-ways, sage-pool or hsdag."""
    learns_order: bool = True
    """Have SEL select ops; if not, CRITICAL PATH does (Table 3: PLC)."""
    learns_devices: bool = True
    """Have PLC place ops; if not, CRITICAL PATH does (Table 3: SEL)."""
    wide_features: bool = True
    """Use more features than the paper's five of ops and five of devices, relative to the other devices."""
    mean_of_embeddings: bool = True
    """Average embeddings over paths and over the ops of a device; the paper sums them."""
    logit_range: float | None = 12.0
    """Squash the scores of SEL into plus or minus this range; None: unbounded, as in the paper."""
    direct: bool = True
    """Add learned linear functions of the features of ops and devices to scores and logits; not in the paper."""
    begins_as: Beginning = Beginning.CRITICAL_PATH
    """Behaviour that the untrained policy approximates."""
    own_scores: bool = True
    """Learn a score of every op, and of every op on every device, beside the networks; not in the paper."""
    simulated_updates: int = 0
    """Number of updates on simulated plans before plans are measured (stage II before stage III), if plans are measured
    at all. They take at most a fifth of the budget, and each draws as many plans as if all were simulated."""

    ranges: ClassVar[Ranges] = (
        *ReusableOptions.ranges,
        ("2 to 4,096", 2, 4_096, "width"),
        ("1 to 64", 1, 64, "layers"),
        ("at least 0", 0, NO_END, "simulated_updates"),
        ("above 0 or None", ABOVE_0, NO_END, "logit_range"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.learns_order or self.learns_devices):
            raise OptionError("one of learns_order and learns_devices must be true: there is nothing else to learn")
        if self.begins_as is not Beginning.NOTHING and not self.wide_features:
            raise OptionError(f"begins_as={self.begins_as.value} needs wide_features; begins_as=nothing does without")

    @classmethod
    def default(cls, *, is_cheap: bool) -> Self:
        """Return the default preset.

        If plans are measured, the policy learns from simulated ones first, then in smaller updates, with advantages by
        reward instead of rank, which keep the influence of noise small.
        """
        if not is_cheap:
            return cls(simulated_updates=100)
        return cls(**{**SIMULATED, "plans_per_update": SIMULATED_PLANS}, kept_per_update=SIMULATED_KEPT)

    @classmethod
    def paper(cls) -> Self:
        """Return the preset that follows the paper exactly (§4, §5, §6; App. E).

        It has 8,000 episodes, as the paper has for its Llama graphs.
        """
        return cls(
            **REINFORCE,
            updates=8_000,
            plans_per_update=1,
            learning_rate=1e-4,
            last_learning_rate=1e-7,
            exploration=0.2,
            entropy=1e-2,
            last_entropy=1e-2,
            reward=Reward.NEGATIVE,
            baseline=Baseline.RUNNING,
            teacher_updates=200,
            max_grad_norm=0.0,
            width=128,
            layers=3,
            encoder="messages",
            wide_features=False,
            mean_of_embeddings=False,
            logit_range=None,
            direct=False,
            begins_as=Beginning.NOTHING,
            own_scores=False,
        )


PATH_ORDER, PATH_START, PATH_END = 10.0, 10.0, 10.0
"""Magnitudes of the initial weights of a network that begins as CRITICAL PATH: of the path to the end, as a share of
the longest one, and of the start and the end of an op, in units of the mean time of an op. With larger ones, no plan
but CRITICAL PATH's would be drawn."""


class DualNetwork(nn.Module):
    """Network from a problem to the tables for decoding; any number of ops and devices.

    Untrained, all choices are equally likely, unless it begins as CRITICAL PATH. With ``size``, the numbers of ops and
    devices of one problem, it also learns a score of every op, and of every op on every device, which is not in the
    paper. Without these scores, the network could not distinguish ops of the same cost at equivalent positions in the
    graph, such as the shards of a product, which a plan may have to treat differently.
    """

    def __init__(self, config: DopplerConfig, generator: torch.Generator, size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self._config = config
        width = config.width
        num_features, num_of_device = (NUM_WIDE, len(FEATURES)) if config.wide_features else (NUM_PAPER, PAPER_FEATURES)
        self.encoder = Encoder(config.encoder, num_features, width, config.layers, generator)
        self.features = Mlp([num_features, width, width], generator)
        self.select = Mlp([4 * width, width, 1], generator, zero_output=True)
        self.node = linear(2 * width, width, generator)
        self.seen = linear(width, width, generator, bias=False)
        self.inner = linear(num_of_device, width // 2, generator)
        self.outer = linear(width // 2, width, generator, bias=False)
        self.out = nn.Parameter(torch.zeros(width))
        self.direct = nn.Parameter(torch.zeros(num_of_device), requires_grad=config.direct)
        self.direct_select = nn.Parameter(torch.zeros(num_features), requires_grad=config.direct)
        shapes = {} if size is None else {"select": size[:1], "place": size}
        self.own = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})
        self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        """Set the initial weights, so that the network approximates CRITICAL PATH if the options ask for it.

        CRITICAL PATH, the teacher of stage I, selects the op with the longest path to the end and places it where it
        starts earliest.
        """
        if self._config.begins_as is Beginning.CRITICAL_PATH:
            self.direct_select[WAY_TO_END] = PATH_ORDER
            self.select.layers[-1].bias.fill_(-PATH_ORDER / 2)  # type: ignore[operator]
            self.direct[START_LATER], self.direct[END_LATER] = -PATH_START / SEEN_PACE, -PATH_END / SEEN_PACE

    def forward(self, inputs: NetworkInputs) -> Scores[torch.Tensor]:
        """Return the tables for decoding (eq. 3 to 7)."""
        h, z = self.encoder(inputs.x, inputs.edges), self.features(inputs.x)
        paths = [sum_over_path(h, following) for following in (inputs.before, inputs.behind)]
        if self._config.mean_of_embeddings:
            paths = [path / length for path, length in zip(paths, inputs.path_lengths, strict=True)]
        select = self.select(torch.cat([h, *paths, z], dim=1)).squeeze(1) + inputs.x @ self.direct_select
        scores = {name: within(OWN_PACE * score, OWN_RANGE) for name, score in self.own.items()}
        return Scores(
            select=within(select, self._config.logit_range) + scores.get("select", 0.0),
            node=self.node(torch.cat([h, z], dim=1)),
            seen=self.seen(h),
            inner=self.inner.weight.t(),
            inner_bias=self.inner.bias,
            outer=self.outer.weight.t(),
            out=self.out,
            direct=(SEEN_PACE * self.direct).expand(len(h), -1),
            bias=scores.get("place", h.new_zeros(len(h), inputs.costs.num_devices)),
        )
