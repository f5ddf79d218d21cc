"""DualPolicy: SEL and PLC as a policy over plans of one problem (DOPPLER §4).

Legend: B plans, N ops, D devices, M decisions, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import leaky_relu, one_hot, pad

from hsdag.ir.graph import IntArray, inverse_of
from hsdag.learning.choices import judged
from hsdag.learning.decoding import Rules, decode
from hsdag.learning.decoding_kernel import SLOPE
from hsdag.learning.decoding_records import Episodes, Scores
from hsdag.learning.doppler.candidates import judged_in_turn
from hsdag.learning.doppler.network import DualNetwork, OwnScores, Tensors
from hsdag.learning.inputs import Inputs
from hsdag.learning.policy import Exploring, Judged, Policy, Rollout, seeds_from
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import simulate


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

    def judge(self, rollouts: Sequence[Rollout]) -> Judged:
        """All log-probabilities of SEL and PLC in one batched pass over the recorded decisions."""
        found = Episodes(*(np.stack(column) for column in zip(*(each.record for each in rollouts), strict=True)))
        learned = [i for i, fixed in enumerate((self._rules.by_path, self._rules.by_start)) if not fixed]
        net = self.network(self._inputs)
        parts = [(self._selection, self._placement)[i](net, found) for i in learned]
        log_p, entropy = (torch.stack(column, dim=-1) for column in zip(*parts, strict=True))
        drawn = torch.from_numpy(found.log_p[:, :, learned]).float()
        owner = torch.arange(len(rollouts)).repeat_interleave(drawn[0].numel())
        return Judged(log_p.reshape(-1), drawn.reshape(-1), owner, entropy.reshape(-1))

    def _selection(self, net: Tensors, found: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [B, N] of the ops selected at every step, and entropies [B, N]."""
        order, ready = torch.from_numpy(found.order), torch.from_numpy(found.ready)
        log_p, entropy = judged_in_turn(net.select.double()[order], ready.gather(1, order))
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
        return judged(logits.masked_fill(~(able | on.bool()), -torch.inf), home)

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
