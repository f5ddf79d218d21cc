"""DualNetwork: message passing, SEL and PLC (DOPPLER §4.2). Legend: N ops, F features, H and K widths."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from hsdag.learning.decoding import END_LATER, START_LATER
from hsdag.learning.encoders import make_encoder
from hsdag.learning.inputs import Inputs, sum_over_path
from hsdag.learning.networks import Mlp, linear
from hsdag.runtime.problems.op_features import WAY_TO_END

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
