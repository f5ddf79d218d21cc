"""Options of ``hsdag``, and encoder, graph parsing network (Alg. 2) and placer in one network (HSDAG, §2.4, §2.5).

Legend: U placement units, F features, D devices, N nodes, E undirected edges, K nominated edges, B parses, G distinct
groups of them, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.methods.learned.decoding import FEATURES, OWN_PACE, OWN_RANGE, SEEN_PACE
from hsdag.methods.learned.hsdag.groups import Groups, Parse, Topology
from hsdag.methods.learned.networks import Edges, Encoder, Mlp, within
from hsdag.methods.learned.options import (
    ABOVE_0,
    BELOW_1,
    NO_END,
    REINFORCE,
    SIMULATED,
    Baseline,
    Ranges,
    ReusableOptions,
    Reward,
)


@dataclass(frozen=True)
class HsdagConfig(ReusableOptions):
    """Hyper-parameters of ``hsdag``, chosen for 40 to 300 evaluations (docs/learned-methods.md).

    Raises OptionError for a value out of range.
    """

    plans_per_update: int = 10
    epochs: int = 4
    learning_rate: float = 3e-3
    last_learning_rate: float = 3e-3
    entropy: float = 0.03
    elites: int = 4
    greedy_every: int = 2
    resample_tries: int = 12
    advantage_floor: float = 0.01
    hidden: int = 128
    """Width of all hidden layers (Table 6: hidden_channel)."""
    input_layers: int = 2
    """Number of layers of the MLP on the node features (Table 6: layer_trans)."""
    encoder: str = "hsdag"
    """Layer that passes messages: hsdag (Eq. 6), messages, both-ways or sage-pool."""
    gnn_layers: int = 2
    """Number of graph convolutions, or of rounds of message passing (Table 6: layer_gnn)."""
    parsing_layers: int = 2
    """Number of layers of the MLP that scores edges (Table 6: layer_parsingnet)."""
    dropout: float = 0.0
    """Share of hidden units that dropout sets to 0 in the encoder (Table 6: 0.2)."""
    residual: bool = True
    """Add a convolution's input to its output, so that neighbours stay distinguishable; not in the paper."""
    sampled_parsing: bool = True
    """Keep a nominated edge with a probability equal to its score, so that parses are explored and learned."""
    normalise: bool = True
    """Scale embeddings and states to a mean square of 1 per placement unit; otherwise, sums over steps and products of
    embeddings grow by orders of magnitude, and training diverges at higher learning rates. Not in the paper."""
    output_shape: bool = True
    """Use the output-shape features (Table 3)."""
    node_id: bool = True
    """Use the positional features (Table 3: node ID)."""
    structure: bool = True
    """Use fractal dimension and degrees (Table 3: graph structural features)."""
    costs: bool = True
    """Use times on every device, transfers and levels as features of units if costs are known; not in the paper."""
    portable_features: bool = False
    """Use only features that all problems have, whatever their types of ops and their devices; so do networks that
    begin with ``initial``."""
    sees: bool = True
    """Place groups one after another, each given features of the devices in the schedule of the units before it; not in
    the paper."""
    learns_order: bool = True
    """Learn the order in which units are placed and run; not in the paper."""
    own_scores: bool = True
    """Learn a score of every unit on every device beside the networks; not in the paper."""
    steps: int = 1
    """Number of plans of an episode, one after another, each changing the state (Alg. 1; Table 6: update_timestep)."""
    logit_range: float | None = 3.0
    """Squash the logits of devices into plus or minus this range, so that a policy never stops exploring; None:
    unbounded, as in the paper."""
    score_bias: float = -2.0
    """Logit of all edge scores before training; if it is below 0, groups are small at first."""
    score_range: float | None = 3.0
    """Squash the logits of edge scores into plus or minus this range; None: unbounded."""

    ranges: ClassVar[Ranges] = (
        *ReusableOptions.ranges,
        ("at least 1", 1, NO_END, "hidden input_layers gnn_layers parsing_layers steps"),
        ("above 0 or None", ABOVE_0, NO_END, "logit_range score_range"),
        ("in [0, 1)", 0, BELOW_1, "dropout"),
    )

    @classmethod
    def paper(cls) -> Self:
        """Return the preset that follows the paper exactly (§2.4, §2.5, Alg. 1, Table 6).

        The discount gamma, which the paper does not state, is 0.99.
        """
        return cls(
            **{**REINFORCE, "epochs": 4},
            updates=100,
            plans_per_update=20,
            steps=20,
            learning_rate=1e-4,
            last_learning_rate=1e-4,
            entropy=0.0,
            reward=Reward.INVERSE,
            baseline=Baseline.NONE,
            discount=0.99,
            greedy_every=0,
            resample_tries=1,
            single_devices_first=False,
            max_grad_norm=0.0,
            dropout=0.2,
            residual=False,
            sampled_parsing=False,
            normalise=False,
            costs=False,
            sees=False,
            learns_order=False,
            own_scores=False,
            logit_range=None,
            score_bias=0.0,
            score_range=None,
        )

    @property
    def is_portable(self) -> bool:
        """Return whether only features are used that all problems have."""
        return self.portable_features or self.initial is not None

    @classmethod
    def reusable(cls) -> Self:
        """Return the options with which networks are trained for reuse."""
        return replace(cls.default(is_cheap=True), portable_features=True)

    @classmethod
    def default(cls, *, is_cheap: bool) -> Self:
        """Return the default preset; if plans are simulated, its network and, at first, its groups are smaller."""
        return cls(**SIMULATED, hidden=64, score_bias=-4.0, score_range=8.0) if is_cheap else cls()


BEGINNING = {"share of the op's input that is on the device": 3.0, "start, later than on the best device": -1.0}
"""Initial weights of the features of devices, by feature, if costs are unknown: a few dozen measurements are too few to
learn that cuts and waiting cost time. Chosen on 20 training graphs of five families."""

NEUTRAL_SCORE = 0.5
"""Score of an edge of logit 0, sigmoid(0)."""


def nominate(topology: Topology, scores: FloatArray) -> IntArray:
    """Return the incident edge with the highest score of every node (Eq. 9), each edge once, ascending [K].

    Ties between scores [E] are broken by rank. The two order the edges strictly, so the nominated edges form a forest.
    """
    order = np.lexsort((topology.rank, scores))
    place = inverse_of(order)
    best = np.full(topology.num_nodes, -1, dtype=np.int64)
    np.maximum.at(best, topology.left, place)
    np.maximum.at(best, topology.right, place)
    return np.asarray(np.sort(order[np.unique(best[best >= 0])]), dtype=np.int64)


def parse_of(topology: Topology, nominated: IntArray, scores: FloatArray, kept: BoolArray) -> Parse:
    """Return the parse with the nominated edges [K] that are kept [K], by the scores of all edges [E].

    A departure from the paper: if the kept edges would join a connected graph into one group, the edge with the lowest
    score is dropped, unless its score exceeds 0.5. A single group, and thus a single device, has to be learned.
    """
    if topology.num_nodes > 1 and int(kept.sum()) == topology.num_nodes - 1:  # the forest is a tree
        weakest = np.lexsort((topology.rank[nominated], scores[nominated]))[0]
        if scores[nominated[weakest]] <= NEUTRAL_SCORE:
            kept = kept & (np.arange(len(kept)) != weakest)
    return Parse(topology, nominated, kept)


def pooled_embeddings(z: torch.Tensor, scores: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Return embeddings [G, H] of the distinct groups, from embeddings of nodes [N, H] and scores of edges [E].

    They are the mean embedding of the members times the mean score of the kept edges, or 0.5 if there are none.
    """
    score = z.new_zeros(groups.num_distinct).index_add(0, groups.edge_group, scores.gather(0, groups.edge))
    count = groups.size - 1  # nominated edges form a forest, and groups are its trees
    weight = torch.where(count > 0, score / count.clamp(min=1), NEUTRAL_SCORE)
    return groups.sums(z) * (weight / groups.size)[:, None]


def dropout(share: float, seed: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that sets a share of entries to 0 and scales the rest up.

    Its masks follow from the seed, so that stored steps can be recomputed; without a seed, it changes nothing.
    """
    generator = torch.Generator().manual_seed(seed or 0)

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(x.shape, generator=generator) >= share) / (1.0 - share)

    return dropped if seed is not None and share > 0.0 else lambda x: x


SLOWNESS_UNIT = 30.0
"""Factor from the parameter to the weight of slowness, so that a few updates suffice to learn it."""


class Situation(NamedTuple):
    """Inputs of a forward pass: the state [U, H], None at the start of an episode, and the seed of dropout masks."""

    state: torch.Tensor | None = None
    dropout_seed: int | None = None


class View(NamedTuple):
    """Output of the forward pass for a situation: embeddings [U, H], and logits of edge scores [E]."""

    z: torch.Tensor
    score_logits: torch.Tensor


def unit_rows(z: torch.Tensor) -> torch.Tensor:
    """Return the rows of ``z`` [N, H], scaled to a mean square of 1 each."""
    return z * (z.square().mean(dim=1, keepdim=True) + 1e-6).rsqrt()


class GroupNetwork(nn.Module):
    """Network that computes embeddings, edge scores and logits of devices for one problem.

    Untrained, all edges are equally likely to be kept, and all devices equally likely to be chosen, unless ``begin``
    is called. Edges of ``groupable`` connect only units that the same devices support, since only these may share a
    group.
    """

    def __init__(
        self,
        x: torch.Tensor,
        topology: Topology,
        supported: BoolArray,
        config: HsdagConfig,
        generator: torch.Generator,
        time_s: torch.Tensor | None = None,
        edges: Edges | None = None,
    ) -> None:
        """Initialise the weights at random.

        Args:
            x: Standardised features of units [U, F].
            topology: Edges between units.
            supported: Whether a device supports a unit [U, D].
            config: Sizes of the layers, and which of them there are.
            generator: Source of the initial weights.
            time_s: Times of units in seconds [U, D]. If they are given, a learned multiple of the logarithm of a
                group's time over that on its fastest device is subtracted from the device's logit; not in the paper.
            edges: Edges that messages pass along; by default, those of the topology.
        """
        super().__init__()
        self._config = config
        self._x, self._time_s = x, time_s
        self._edges = edges or Edges.without_costs(torch.from_numpy(topology.left), torch.from_numpy(topology.right))
        self.slowness = nn.Parameter(torch.zeros(()), requires_grad=time_s is not None)
        alike = (supported[topology.left] == supported[topology.right]).all(axis=1)
        self.groupable = Topology.from_edges(topology.num_nodes, topology.left[alike], topology.right[alike])
        self.supported = torch.tensor(supported)
        self.encoder = Encoder(
            config.encoder,
            x.shape[1],
            config.hidden,
            config.gnn_layers,
            generator,
            input_layers=config.input_layers,
            residual=config.residual,
        )
        self.edge_mlp = Mlp([config.hidden] * config.parsing_layers + [1], generator, zero_output=True)
        self.placer = Mlp([config.hidden, config.hidden, supported.shape[1]], generator, zero_output=True)
        self.of_seen = Mlp([config.hidden, config.hidden, len(FEATURES)], generator, zero_output=True)
        self.selector = Mlp([config.hidden, config.hidden, 1], generator, zero_output=True)
        self.seen = nn.Parameter(torch.zeros(len(FEATURES)))
        shapes = {"select": supported.shape[:1], "place": supported.shape}
        self.own = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})

    @torch.no_grad()
    def begin(self) -> None:
        """Set the weights of the features of devices to those of ``BEGINNING``."""
        self.seen.copy_(torch.tensor([BEGINNING.get(name, 0.0) / SEEN_PACE for name in FEATURES]))

    def view(self, situation: Situation) -> View:
        """Encode a situation with the current weights; the score of an edge is sigmoid(MLP(z_u * z_v)) (Eq. 7)."""
        z = self.encoder(self._x, self._edges, situation.state, dropout(self._config.dropout, situation.dropout_seed))
        z = unit_rows(z) if self._config.normalise else z
        left, right = (torch.from_numpy(ends) for ends in (self.groupable.left, self.groupable.right))
        logits = self.edge_mlp(z.index_select(0, left) * z.index_select(0, right)).squeeze(-1) + self._config.score_bias
        return View(z, within(logits, self._config.score_range))

    def parse(
        self,
        view: View,
        count: int = 1,
        generator: torch.Generator | None = None,
        devices: Sequence[IntArray] | None = None,
    ) -> list[Parse]:
        """Return ``count`` parses.

        If parsing is sampled, a nominated edge is kept with a probability equal to its score, or, without a generator,
        if its score is at least one half. Otherwise all nominated edges are kept.

        Args:
            view: Output of the forward pass.
            count: Number of parses B.
            generator: Source of randomness.
            devices: Placements [U] that the parses must allow, one for each: edges between devices are dropped.
        """
        scores = np.asarray(torch.sigmoid(view.score_logits.detach()).double().numpy())
        nominated = nominate(self.groupable, scores)
        shape = (count, len(nominated))
        least = np.asarray(NEUTRAL_SCORE)
        if generator is not None:
            least = torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
        kept = np.broadcast_to((least <= scores[nominated]) | (not self._config.sampled_parsing), shape)
        if devices is not None:
            homes = np.stack(devices)
            kept = kept & (homes[:, self.groupable.left[nominated]] == homes[:, self.groupable.right[nominated]])
        return [parse_of(self.groupable, nominated, scores, of_parse) for of_parse in kept]

    def embed(self, view: View, groups: Groups) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return pooled embeddings of distinct groups, and log-probabilities and entropies of the parses.

        The embeddings are [G, H]. The log-probabilities are those of keeping or dropping each nominated edge, as the
        parses do, and have shape [B K], as have the entropies; both are [0] if parsing is not sampled.
        """
        logits = view.score_logits
        log_p = entropy = logits.new_zeros(0)
        if self._config.sampled_parsing:
            fates = nn.functional.logsigmoid(torch.cat([-logits, logits]))
            log_p = fates.gather(0, groups.nominated + len(logits) * groups.kept)
            entropy = nn.functional.softplus(logits) - logits * torch.sigmoid(logits)
            entropy = entropy.gather(0, groups.nominated)
        return pooled_embeddings(view.z, torch.sigmoid(logits), groups), log_p, entropy

    @torch.no_grad()
    def next_state(self, view: View, parse: Parse) -> torch.Tensor:
        """Return the next state [U, H], Z_v + Z_{v'} with v' the group of v (Alg. 1, line 10), without gradients."""
        groups = Groups.of([parse])
        state = view.z + self.embed(view, groups)[0][groups.distinct[torch.tensor(groups.labels[0])]]
        return unit_rows(state) if self._config.normalise else state

    def weights(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return weights [G, F] of the features of devices for distinct groups with embeddings [G, H]."""
        if not self._config.sees:
            return pooled.new_zeros(len(pooled), len(FEATURES))
        return torch.as_tensor(SEEN_PACE * self.seen + self.of_seen(pooled))

    def urgency(self, view: View) -> torch.Tensor:
        """Return the scores [U] by which units are selected, computed from embeddings [U, H]."""
        return torch.as_tensor(self.selector(view.z).squeeze(1) + within(OWN_PACE * self.own["select"], OWN_RANGE))

    def logits(self, pooled: torch.Tensor, groups: Groups) -> torch.Tensor:
        """Return logits [G, D] of devices for distinct groups with embeddings [G, H].

        They are minus infinity for devices that do not support the units of a group.
        """
        logits = self.placer(pooled)
        if self._config.own_scores:
            mean_score = groups.sums(self.own["place"]) / groups.size[:, None]
        if self._time_s is not None:
            total_s = groups.sums(self._time_s)
            slowness = torch.log(total_s / total_s.min(dim=1, keepdim=True).values)
            logits = logits - SLOWNESS_UNIT * self.slowness * slowness
        logits = within(logits, self._config.logit_range)
        if self._config.own_scores:
            logits = logits + within(OWN_PACE * mean_score, OWN_RANGE)
        return torch.as_tensor(logits.masked_fill(~self.supported[groups.representative], -torch.inf))
