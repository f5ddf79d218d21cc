"""DOPPLER's options, and DualNetwork: message passing, SEL and PLC (§4.2).

Legend: N ops, F features, H and K widths.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, Self

import torch
from torch import nn

from hsdag.ir.errors import OptionError
from hsdag.methods.learned.decoding import END_LATER, START_LATER
from hsdag.methods.learned.inputs import Inputs, sum_over_path
from hsdag.methods.learned.networks import Mlp, linear, make_encoder
from hsdag.methods.learned.options import Baseline, Ranges, Reward, TrainingOptions
from hsdag.runtime.problem.op_features import WAY_TO_END

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

    @classmethod
    def default(cls, *, is_cheap: bool) -> Self:
        """Where every plan is measured: simulated ones first, smaller updates, and weights by reward, which keep noise
        small."""
        if is_cheap:
            return cls()
        return cls(plans_per_update=8, kept_per_update=None, baseline=Baseline.BATCH, simulated_updates=100)

    @classmethod
    def paper(cls) -> Self:
        """The paper to the letter: §4, §5, §6; App. E; 8,000 episodes, as for its Llama graphs."""
        return cls(
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


HEFT_ORDER, HEFT_END = 30.0, 3.0
"""How sharply a network that begins as HEFT prefers long ways to the end, as shares of the longest, and early ends, in
units of the mean op."""

PATH_ORDER, PATH_START, PATH_END = 10.0, 60.0, 3.0
"""The same for CRITICAL PATH: how sharply it prefers long ways, early starts, and early ends among equal starts."""
OWN_PACE, OWN_RANGE = 300.0, 8.0
"""How much faster scores of single ops are learned than weights of networks, and how far they go."""


class Tensors(NamedTuple):
    """``Scores`` as tensors, with their history."""

    select: torch.Tensor  # [N]
    node: torch.Tensor  # [N, K]
    seen: torch.Tensor  # [N, K]
    inner: torch.Tensor  # [F, H]
    inner_bias: torch.Tensor  # [H]
    outer: torch.Tensor  # [H, K]
    out: torch.Tensor  # [K]
    direct: torch.Tensor  # [F]
    own: torch.Tensor  # [N, D]


class DualNetwork(nn.Module):
    """From a problem to the tables that decoding reads; any number of ops and devices.

    ``is_mean`` averages embeddings over paths and over the ops of a device, where the paper sums them: sums grow with
    the graph. ``logit_range`` bounds the logits of selection. ``is_direct`` adds linear functions of the features to
    scores and logits; not in the paper.
    """

    def __init__(
        self,
        num_features: int,
        num_device_features: int,
        width: int,
        layers: int,
        encoder: str,
        generator: torch.Generator,
        *,
        is_mean: bool,
        is_direct: bool,
        logit_range: float | None,
    ) -> None:
        super().__init__()
        self._is_mean, self._range, self.num_device_features = is_mean, logit_range, num_device_features
        self.encoder = make_encoder(encoder, num_features, width, layers, generator)
        self.features = Mlp([num_features, width, width], generator)
        self.select = Mlp([4 * width, width, 1], generator, zero_output=True)
        self.node = linear(2 * width, width, generator)
        self.seen = linear(width, width, generator, bias=False)
        self.inner = linear(num_device_features, width // 2, generator)
        self.outer = linear(width // 2, width, generator, bias=False)
        self.out = nn.Parameter(torch.zeros(width))
        self.direct = nn.Parameter(torch.zeros(num_device_features), requires_grad=is_direct)
        self.direct_select = nn.Parameter(torch.zeros(num_features), requires_grad=is_direct)

    def forward(self, inputs: Inputs) -> Tensors:
        """The tables, by eq. 3 to 7; untrained, all choices are equally likely."""
        h = self.encoder(inputs.x, inputs.edges)
        z = self.features(inputs.x)
        paths = [sum_over_path(h, following) for following in (inputs.before, inputs.behind)]
        if self._is_mean:
            paths = [path / length for path, length in zip(paths, inputs.path_lengths, strict=True)]
        select = self.select(torch.cat([h, *paths, z], dim=1)).squeeze(1) + inputs.x @ self.direct_select
        if self._range is not None:
            select = self._range * torch.tanh(select / self._range)
        node = self.node(torch.cat([h, z], dim=1))
        inner, outer = self.inner.weight.t(), self.outer.weight.t()
        own = h.new_zeros(len(h), inputs.costs.num_devices)
        return Tensors(select, node, self.seen(h), inner, self.inner.bias, outer, self.out, self.direct, own)

    @torch.no_grad()
    def begin_as_heft(self) -> None:
        """Begin near HEFT: the longest way to the end first, where an op ends first (Topcuoglu et al. 2002, §4.1)."""
        self.direct_select[WAY_TO_END] = HEFT_ORDER
        self.direct[END_LATER] = -HEFT_END

    @torch.no_grad()
    def begin_as_critical_path(self) -> None:
        """Begin near CRITICAL PATH, stage I's teacher: the longest way to the end first, where it starts first."""
        self.direct_select[WAY_TO_END] = PATH_ORDER
        self.select.layers[-1].bias.fill_(-PATH_ORDER / 2)  # type: ignore[operator]
        self.direct[START_LATER], self.direct[END_LATER] = -PATH_START, -PATH_END


class OwnScores(nn.Module):
    """A network, and a score of every op of one problem and of the op on every device, learned beside it.

    To the network, ops are alike that cost the same and stand in the same place, as the shards of a product do; yet a
    plan has to tell them apart. Not in the paper. Untrained, they are zero.
    """

    network: DualNetwork

    def __init__(self, network: DualNetwork, num_ops: int, num_devices: int) -> None:
        super().__init__()
        self.network, self.num_device_features = network, network.num_device_features
        self.select, self.place = nn.Parameter(torch.zeros(num_ops)), nn.Parameter(torch.zeros(num_ops, num_devices))

    def forward(self, inputs: Inputs) -> Tensors:
        """The network's tables and, within plus or minus ``OWN_RANGE``, what is learned of each op."""
        net: Tensors = self.network(inputs)
        select, place = (OWN_RANGE * torch.tanh(OWN_PACE / OWN_RANGE * own) for own in (self.select, self.place))
        return net._replace(select=net.select + select, own=place)
