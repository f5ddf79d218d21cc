"""DualPolicy: SEL and PLC as a policy over plans of one problem (DOPPLER §4), new or from a file.

Legend: B plans, N ops, K levels, P pairs, D devices, M decisions, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from torch.nn.functional import leaky_relu, one_hot, pad

from hsdag.ir.errors import FileFormatError, OptionError
from hsdag.ir.graph.computation_graph import IntArray, inverse_of
from hsdag.methods.learned.decoding import FEATURES, PAPER_FEATURES, SLOPE, Episodes, Rules, Scores, decode
from hsdag.methods.learned.doppler.network import (
    DUAL_OPTIONS,
    Beginning,
    DopplerConfig,
    DualNetwork,
    OwnScores,
    Tensors,
)
from hsdag.methods.learned.inputs import NUM_PAPER, NUM_WIDE, Inputs, inputs_of
from hsdag.methods.learned.policy import Exploring, Likelihood, Policy, Rollout, log_p_of, seeds_from
from hsdag.methods.learned.training import without_gone
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import simulate
from hsdag.scoring.policy_file import PolicyFile, read_policy


def log_p_in_turn(score: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, N] log-probabilities of the ops selected at every step, by their scores [B, N], and entropies [B, N].

    The op that step t selects is a candidate from step ``first[:, t]`` to t.

    Nothing is subtracted from a sum, which would have no digits left where scores are far apart: every op counts at the
    nodes of a tree that cover its steps, and a step adds up the nodes above it. The weights of a node are relative to
    its largest one, so that no sum is zero.
    """
    cover = Cover.of(first)
    value, num_nodes = score.flatten()[cover.op], len(score) * cover.num_nodes
    most = score.detach().min().repeat(num_nodes).scatter_reduce(0, cover.node, value.detach(), "amax")
    below = most[cover.node] - value
    weight = torch.exp(-below)
    sums = [score.new_zeros(num_nodes).scatter_add(0, cover.node, each) for each in (weight, weight * below)]
    most, total, lost = (each.reshape(len(score), -1)[:, cover.above] for each in (most, *sums))  # [B, N, K]
    highest = most.amax(dim=-1, keepdim=True)  # of all candidates
    share = torch.exp(most - highest)
    lost = (share * (lost + (highest - most) * total)).sum(dim=-1)
    total = (share * total).sum(dim=-1)
    return score - highest.squeeze(-1) - total.log(), total.log() + lost / total


class Cover(NamedTuple):
    """The nodes that cover the steps of every op: of a binary tree over the steps, the fewest.

    Node i is above nodes 2 i and 2 i + 1; the last half are the steps.
    """

    op: torch.Tensor  # [P] of a pair of an op and one of its nodes: where it is in [B, N],
    node: torch.Tensor  # [P] and where the node is in [B, num_nodes]
    above: torch.Tensor  # [N, K] the nodes above each step that cover anything
    num_nodes: int

    @classmethod
    def of(cls, first: torch.Tensor) -> Cover:
        """The cover of steps ``first`` [B, N] to t for every step t."""
        num_steps = first.shape[1]
        leaf, longest = 1 << num_steps.bit_length(), int((torch.arange(num_steps) - first).max()) + 1
        level = torch.arange(longest.bit_length(), dtype=torch.int32)
        step = leaf + torch.arange(num_steps, dtype=torch.int32)[:, None]
        left, right = -((-leaf - first.int()[..., None]) >> level), (step + 1) >> level  # [B, N, K] inside these
        pairs = []
        for end, node in ((left, left), (right, right - 1)):
            found = ((left < right) & (end & 1).bool()).flatten().nonzero().squeeze(1)
            op = found // len(level)
            pairs.append(torch.stack([op, node.expand_as(left).flatten()[found] + op // num_steps * (2 * leaf)]))
        ops, nodes = torch.cat(pairs, dim=1)
        return cls(ops, nodes, step >> level, 2 * leaf)


class DualPolicy(Policy):
    """Draws an order and devices together; its plans always have an order.

    ``rules`` say which of the two is learned: with ``by_path`` the order is CRITICAL PATH's, with ``by_start`` the
    devices are.
    """

    network: DualNetwork | OwnScores

    def __init__(self, network: DualNetwork | OwnScores, inputs: Inputs, rules: Rules) -> None:
        self.network, self._inputs, self._rules = network, inputs, rules

    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """``count`` plans; a share of the decisions is uniform, which their log-probabilities account for."""
        rules = replace(self._rules, exploration=exploring.share, heat=exploring.heat)
        return self._decoded(rules, _seeds(count, generator))

    def best(self, generator: torch.Generator) -> Rollout:
        """The largest score and the largest logit at every step."""
        return self._decoded(replace(self._rules, is_greedy=True), _seeds(1, generator))[0]

    def teacher(self, count: int, generator: torch.Generator) -> list[Rollout]:
        """Decisions of CRITICAL PATH (stage I): the longest way to the end first, where it starts first."""
        return self._decoded(Rules(by_path=True, by_start=True), _seeds(count, generator))

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:  # noqa: ARG002
        """The decisions that lead to plans: ops in the order in which they start, which any executor would take."""
        order = np.stack([start_order(self._inputs.costs, plan) for plan in plans])
        home = np.stack([plan.placement[by] for plan, by in zip(plans, order, strict=True)])
        return self._decoded(self._rules, np.zeros(len(plans), np.uint64), (order, home))

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """All log-probabilities of SEL and PLC in one batched pass over the recorded decisions."""
        found = Episodes(*(np.stack(column) for column in zip(*(each.record for each in rollouts), strict=True)))
        learned = [i for i, fixed in enumerate((self._rules.by_path, self._rules.by_start)) if not fixed]
        net = self.network(self._inputs)
        parts = [(self._selection, self._placement)[i](net, found) for i in learned]
        log_p, entropy = (torch.stack(column, dim=-1) for column in zip(*parts, strict=True))
        drawn = torch.from_numpy(found.log_p[:, :, learned]).float()
        owner = torch.arange(len(rollouts)).repeat_interleave(drawn[0].numel())
        return Likelihood(log_p.reshape(-1), drawn.reshape(-1), owner, entropy.reshape(-1))

    def _selection(self, net: Tensors, found: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [B, N] of the ops selected at every step, and entropies [B, N]."""
        order, ready = torch.from_numpy(found.order), torch.from_numpy(found.ready)
        log_p, entropy = log_p_in_turn(net.select.double()[order], ready.gather(1, order))
        return log_p.float(), entropy.float()

    def _placement(self, net: Tensors, found: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [B, N] of the devices chosen at every step, and entropies [B, N], by eq. 6 and 7."""
        order, home, able = (torch.from_numpy(each) for each in (found.order, found.home, found.able))
        on = one_hot(home, able.shape[2]).float()  # [B, N, D]
        taken, count = (on[..., None] * net.seen[order][:, :, None, :]).cumsum(dim=1), on.cumsum(dim=1)
        taken, count = pad(taken[:, :-1], (0, 0, 0, 0, 1, 0)), pad(count[:, :-1], (0, 0, 1, 0))  # before each step
        if self._rules.mean_of_seen:
            taken = taken / count.clamp(min=1.0)[..., None]
        features = torch.from_numpy(found.features)
        hidden = torch.relu(features @ net.inner + net.inner_bias)
        total = net.node[order][..., None, :] + taken + hidden @ net.outer
        logits = leaky_relu(total, SLOPE) @ net.out + features @ net.direct + net.own[order]
        return log_p_of(logits.masked_fill(~(able | on.bool()), -torch.inf), home)

    @torch.no_grad()
    def _decoded(
        self, rules: Rules, seeds: NDArray[np.uint64], forced: tuple[IntArray, IntArray] | None = None
    ) -> list[Rollout]:
        """Episodes by the tables of the present weights; CRITICAL PATH selects by b-levels."""
        net = Scores(*(each.numpy() for each in self.network(self._inputs)))
        if rules.by_path:
            level_s = self._inputs.levels.upward_s
            share = level_s / max(float(level_s.max()), np.finfo(float).tiny)
            net = net._replace(select=share.astype(np.float32))
        scores = Scores(*(np.ascontiguousarray(table, dtype=np.float32) for table in net))
        found = decode(self._inputs.tables, scores, rules, seeds, forced)
        rollouts = []
        for b, (order, home) in enumerate(zip(found.order, found.home, strict=True)):
            rank = inverse_of(order)
            rollouts.append(Rollout(Plan(home[rank], rank), Episodes(*(column[b] for column in found))))
        return rollouts


def _seeds(count: int, generator: torch.Generator) -> NDArray[np.uint64]:
    return seeds_from(generator, count).numpy().astype(np.uint64)


def start_order(costs: ScheduleProblem, plan: Plan) -> IntArray:
    """[N] the ops in the order in which a work-conserving machine starts them under ``plan``; topological."""
    start_s = simulate(costs, plan.placement, priority=plan.order).start_s
    return np.lexsort((inverse_of(costs.topological_order), start_s))


def dual_network(options: DopplerConfig, generator: torch.Generator) -> DualNetwork:
    """The untrained network; it reads any problem."""
    num_features = NUM_WIDE if options.wide_features else NUM_PAPER
    network = DualNetwork(
        num_features,
        len(FEATURES) if options.wide_features else PAPER_FEATURES,
        options.width,
        options.layers,
        options.encoder,
        generator,
        is_mean=options.mean_of_embeddings,
        is_direct=options.direct,
        logit_range=options.logit_range,
    )
    if options.begins_as is Beginning.HEFT:
        network.begin_as_heft()
    if options.begins_as is Beginning.CRITICAL_PATH:
        network.begin_as_critical_path()
    return network


def dual_policy(network: DualNetwork | OwnScores, costs: ScheduleProblem, options: DopplerConfig) -> DualPolicy:
    """The network's policy over plans of a problem."""
    rules = Rules(
        by_path=not options.learns_order,
        by_start=not options.learns_devices,
        mean_of_seen=options.mean_of_embeddings,
    )
    return DualPolicy(network, inputs_of(costs, is_wide=options.wide_features), rules)


METHOD = "doppler"


def policy_card(name: str, options: DopplerConfig) -> dict[str, Any]:
    """What the card of a policy has to say so that its networks can be made again."""
    return {"name": name, "method": METHOD, "options": {each: getattr(options, each) for each in DUAL_OPTIONS}}


def stored_policy(path: Path) -> PolicyFile:
    """A policy file of DOPPLER, whose weights fit the networks that its card describes.

    Options that the card leaves out, since they are newer than the file, have their defaults in the card that is
    returned. Raises FileFormatError for any other file.
    """
    stored = read_policy(path, METHOD)
    given, hints = stored.card.get("options"), get_type_hints(DopplerConfig)
    if isinstance(given, dict):
        given = without_gone(given)
    if not isinstance(given, dict) or not set(given) <= set(DUAL_OPTIONS):
        raise FileFormatError(
            f"the card of {path} may give {', '.join(DUAL_OPTIONS)} as options, not {given!r}; "
            "write one with 'hsdag train'"
        )
    options = {each: getattr(DopplerConfig, each) for each in DUAL_OPTIONS} | given
    try:
        for name, value in options.items():
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        made = dual_network(DopplerConfig(**options, begins_as=Beginning.NOTHING), torch.Generator()).state_dict()
    except ValidationError as error:
        raise FileFormatError(f"the card of {path} has {name}={value!r}: {error.errors()[0]['msg']}") from error
    except OptionError as error:
        raise FileFormatError(f"the card of {path} has an option that is wrong: {error}") from error
    if {n: t.shape for n, t in made.items()} != {n: t.shape for n, t in stored.weights.items()}:
        raise FileFormatError(f"{path} does not hold the weights of its card's networks; write one with 'hsdag train'")
    return replace(stored, card={**stored.card, "options": options})
