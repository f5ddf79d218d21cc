"""HsdagPolicy: encoder, parsing network and placer as one network that draws placements (paper §2.5).

Legend: U placement units, F features, D devices, G groups, K nominated edges, H hidden width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from hsdag.ir.graph import IntArray
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.encoder import Encoder, Mlp, unit_rows
from hsdag.learning.hsdag.parsing import Parse, ParsingNetwork
from hsdag.learning.hsdag.topology import Topology
from hsdag.runtime.problems.problem import Problem


@dataclass(frozen=True, eq=False)
class Situation:
    """Where a placement is drawn: the state [U, H] (None at the start of an episode) and the dropout seed."""

    state: torch.Tensor | None
    dropout_seed: int | None

    @cached_property
    def key(self) -> tuple[bytes, int | None]:
        """Equal for situations of equal content."""
        data = b"" if self.state is None else self.state.numpy().tobytes()
        return hashlib.blake2b(data, digest_size=16).digest(), self.dropout_seed


@dataclass(frozen=True, eq=False)
class Draw:
    """A placement as it was decided: the situation, the groups, and a device for each."""

    situation: Situation
    parse: Parse
    group_devices: torch.Tensor  # [G]

    @property
    def placement(self) -> IntArray:
        """[U] device of every unit."""
        devices: IntArray = self.group_devices[self.parse.labels].numpy().astype(np.int64)
        return devices


@dataclass(frozen=True, eq=False)
class Experience:
    """A placement that was drawn and evaluated; ``step`` counts from 1 within its episode (i of Eq. 14)."""

    draw: Draw
    value: float  # NaN when the evaluation failed
    step: int


@dataclass(frozen=True, eq=False)
class Bundle:
    """Draws of one situation laid side by side, so that one pass recomputes all their decisions.

    Decisions are the devices of all groups, then the keeping of all nominated edges where parsings are
    sampled; ``owner`` is the position of the draw that each belongs to.
    """

    situation: Situation
    copies: int
    parse: Parse
    group_devices: torch.Tensor  # [sum of G]
    owner: torch.Tensor  # [sum of G + K]


@dataclass(frozen=True, eq=False)
class View:
    """What one forward pass of a situation gives: embeddings [U, H] and edge-score logits [E]."""

    z: torch.Tensor
    score_logits: torch.Tensor


class HsdagPolicy(nn.Module):
    """A distribution over placements of one problem; untrained, uniform over each group's supported devices.

    ``x`` [U, F] are standardised features. Units that do not support the same devices never share a group.
    """

    def __init__(self, problem: Problem, x: torch.Tensor, config: HsdagConfig, generator: torch.Generator) -> None:
        super().__init__()
        graph = problem.units.graph
        self._config = config
        self._x = x
        self._topology = whole = Topology.from_edges(graph.num_ops, graph.edge_src, graph.edge_dst)
        supported = problem.supported
        alike = (supported[whole.left] == supported[whole.right]).all(axis=1)
        self.groupable = Topology.from_edges(graph.num_ops, whole.left[alike], whole.right[alike])
        self._supported = torch.tensor(supported)
        self.encoder = Encoder(x.shape[1], config, generator)
        self.parsing = ParsingNetwork(config, generator)
        self.placer = Mlp([config.hidden, config.hidden, problem.num_devices], generator, zero_output=True)
        self._tie_rank = torch.rand(supported.shape, generator=generator)

    def view(self, situation: Situation) -> View:
        """Encode a situation under the current weights."""
        z = self.encoder(self._x, situation.state, self._topology, situation.dropout_seed)
        return View(z, self.parsing.score_logits(z, self.groupable))

    @torch.no_grad()
    def next_state(self, view: View, parse: Parse) -> torch.Tensor:
        """[U, H] Z_v + Z_{v'}, v' being the group of v (Alg. 1, line 10), cut from the gradient history."""
        groups, _ = self.parsing.embed(view.z, parse, view.score_logits)
        state = view.z + groups[parse.labels]
        return unit_rows(state) if self._config.normalise else state

    def logits(self, groups: torch.Tensor, parse: Parse, shift: torch.Tensor | None = None) -> torch.Tensor:
        """[G, D] device logits of groups [G, H], plus a ``shift`` [F + 1, D], linear in features, constant last."""
        hidden = self.placer.hidden(groups)
        logits = torch.as_tensor(self.placer.layers[-1](hidden))
        if self._config.logit_range is not None:
            logits = self._config.logit_range * torch.tanh(logits / self._config.logit_range)
        if shift is not None:
            total = self._x.new_zeros(parse.num_groups, self._x.shape[1]).index_add(0, parse.labels, self._x)
            traits = total / torch.bincount(parse.labels, minlength=parse.num_groups)[:, None]  # [G, F] mean features
            logits = logits + traits @ shift[:-1] + shift[-1]
        unit = parse.representative % len(self._supported)  # of any copy of the graph
        return logits.masked_fill(~self._supported[unit], -torch.inf)

    @torch.no_grad()
    def draw(
        self, situation: Situation, view: View, generator: torch.Generator, heat: float = 1.0, reach: float = 0.0
    ) -> Draw:
        """A random placement.

        Groups move together: before devices are drawn, the logits are shifted by a random linear function of
        the groups' features, of a size drawn log-uniformly between a tenth of ``reach`` and all of it, so that
        similar groups change together. ``heat`` multiplies the temperature. Shift and temperature are
        exploration only; probabilities are recomputed without them.
        """
        parse = self.parsing.parse(view.z, self.groupable, generator)
        groups, _ = self.parsing.embed(view.z, parse, view.score_logits)
        shift = self._shift(generator, reach) if reach > 0 else None
        logits = self.logits(groups, parse, shift) / (self._config.temperature * heat)
        devices = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=generator).squeeze(1)
        return Draw(situation, parse, devices)

    def _shift(self, generator: torch.Generator, reach: float) -> torch.Tensor:
        """[F + 1, D] Gaussian weights on a few features, scaled to give logits of the drawn size."""
        num_features, num_devices = self._x.shape[1], self._supported.shape[1]
        size = reach * 10.0 ** -float(torch.rand(1, generator=generator))
        shift = torch.randn((num_features + 1, num_devices), generator=generator) * size
        share = float(torch.rand(1, generator=generator)) ** 2
        chosen = torch.rand(num_features, generator=generator) < max(share, 1.0 / num_features)
        shift[:-1] *= (chosen / max(float(chosen.sum()), 1.0) ** 0.5)[:, None]
        return torch.as_tensor(shift)

    def bundle(self, draws: Sequence[Draw]) -> list[Bundle]:
        """The draws by situation, owners being positions in ``draws``."""
        by_situation: dict[tuple[bytes, int | None], list[int]] = {}
        for i, draw in enumerate(draws):
            by_situation.setdefault(draw.situation.key, []).append(i)
        bundles: list[Bundle] = []
        for members in by_situation.values():
            chosen = [draws[i] for i in members]
            owners = np.repeat(members, [d.parse.num_groups for d in chosen])
            depth = len(chosen[0].parse.levels) if self._config.sampled_parsing else 0
            for level in range(depth):
                counts = [len(d.parse.levels[level].nominated) for d in chosen]
                owners = np.concatenate([owners, np.repeat(members, counts)])
            parse = Parse.side_by_side([d.parse for d in chosen])
            devices = torch.cat([d.group_devices for d in chosen])
            bundles.append(Bundle(chosen[0].situation, len(chosen), parse, devices, torch.tensor(owners)))
        return bundles

    @torch.no_grad()
    def greedy(self, situation: Situation, view: View) -> Draw:
        """The most probable placement: all nominated edges kept, each group on its best device, ties by a rank."""
        parse = self.parsing.parse(view.z, self.groupable, None)
        groups, _ = self.parsing.embed(view.z, parse, view.score_logits)
        logits = self.logits(groups, parse)
        is_best = logits == logits.max(dim=1, keepdim=True).values
        rank = torch.where(is_best, self._tie_rank[parse.representative], -1.0)
        return Draw(situation, parse, rank.argmax(dim=1))

    def uniform(self, situation: Situation, view: View, device: int) -> Draw:
        """All groups on one device, or on their first supported one where they do not support it."""
        parse = self.parsing.parse(view.z, self.groupable, None)
        supported = self._supported[parse.representative]
        first = supported.int().argmax(dim=1)
        return Draw(situation, parse, torch.where(supported[:, device], torch.tensor(device), first))

    def log_probs(self, bundles: Sequence[Bundle]) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of all decisions, bundle after bundle, under the current weights; groups' entropies."""
        decisions: list[torch.Tensor] = []
        entropies: list[torch.Tensor] = []
        for bundle in bundles:
            view = self.view(bundle.situation)
            z, scores = view.z.repeat(bundle.copies, 1), view.score_logits.repeat(bundle.copies)
            groups, edges = self.parsing.embed(z, bundle.parse, scores)
            log_p = torch.log_softmax(self.logits(groups, bundle.parse), dim=1)
            decisions += [log_p.gather(1, bundle.group_devices[:, None]).squeeze(1), edges]
            entropies.append(-(log_p.exp() * log_p.masked_fill(torch.isinf(log_p), 0.0)).sum(dim=1))
        return torch.cat(decisions), torch.cat(entropies)
