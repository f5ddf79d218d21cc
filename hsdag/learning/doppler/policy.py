"""DualPolicy: SEL and PLC as a policy over plans of one problem (DOPPLER §4). Legend: B plans, N ops, D devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from hsdag.ir.graph import IntArray, inverse_of
from hsdag.learning.choices import judged
from hsdag.learning.decoding import Rules, decode
from hsdag.learning.decoding_kernel import SLOPE, Episodes, Scores
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
        return self._decoded(rules, seeds_from(generator, count))

    def best(self, generator: torch.Generator) -> Rollout:
        """The largest score and the largest logit at every step."""
        return self._decoded(replace(self._rules, is_greedy=True), seeds_from(generator, 1))[0]

    def teacher(self, count: int, generator: torch.Generator) -> list[Rollout]:
        """Decisions of CRITICAL PATH (stage I): the longest way to the end first, where it starts first."""
        return self._decoded(Rules(by_path=True, by_start=True), seeds_from(generator, count))

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:  # noqa: ARG002
        """The decisions that lead to plans: ops in the order in which they start, which any executor would take."""
        order = np.stack([start_order(self._inputs.costs, plan) for plan in plans])
        home = np.stack([plan.placement[by] for plan, by in zip(plans, order, strict=True)])
        seeds = np.zeros(len(plans), np.uint64)
        return self._rollouts(decode(self._inputs.tables, self._scores(), self._rules, seeds, (order, home)))

    def judge(self, rollouts: Sequence[Rollout]) -> Judged:
        """All log-probabilities in one batched pass over the recorded decisions."""
        found = Episodes(*(np.stack(column) for column in zip(*(each.record for each in rollouts), strict=True)))
        net = self.network(self._inputs)
        parts = [] if self._rules.by_path else [self._selection(net, found)]
        parts += [] if self._rules.by_start else [self._placement(net, found)]
        learned = [i for i, fixed in enumerate((self._rules.by_path, self._rules.by_start)) if not fixed]
        log_p, entropy = (torch.stack(column, dim=-1) for column in zip(*parts, strict=True))
        drawn = torch.from_numpy(found.log_p[:, :, learned]).float()
        owner = torch.arange(len(rollouts)).repeat_interleave(log_p[0].numel())
        return Judged(log_p.reshape(-1), drawn.reshape(-1), owner, entropy.reshape(-1))

    def _selection(self, net: Tensors, found: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [B, N] of the ops selected at every step, and entropies [B, N].

        An op is a candidate from the step at which it is ready to the one that selects it, so that sums over all
        candidates are running sums.
        """
        order, ready = torch.from_numpy(found.order), torch.from_numpy(found.ready)
        score = net.select.double() - net.select.detach().max()
        weight, first = torch.exp(score)[order], ready.gather(1, order)
        total = torch.maximum(running(weight, first), weight)  # rounding must not take away the op itself
        log_total = torch.log(total)
        entropy = log_total - running(weight * score[order], first) / total
        return (score[order] - log_total).float(), entropy.float()

    def _placement(self, net: Tensors, found: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [B, N] of the devices chosen at every step, and entropies [B, N]."""
        order, home = torch.from_numpy(found.order), torch.from_numpy(found.home)
        features = torch.from_numpy(found.features)
        num_devices = features.shape[2]
        on = torch.nn.functional.one_hot(home, num_devices).float()  # [B, N, D]
        taken = (on[..., None] * net.seen[order][:, :, None, :]).cumsum(dim=1)
        taken = torch.nn.functional.pad(taken[:, :-1], (0, 0, 0, 0, 1, 0))
        if self._rules.mean_of_seen:
            count = torch.nn.functional.pad(on.cumsum(dim=1)[:, :-1], (0, 0, 1, 0))
            taken = taken / count.clamp(min=1.0)[..., None]
        hidden = torch.relu(features @ net.inner + net.inner_bias)
        total = net.node[order][:, :, None, :] + taken + hidden @ net.outer
        logits = torch.nn.functional.leaky_relu(total, SLOPE) @ net.out + features @ net.direct + net.own[order]
        able = torch.from_numpy(found.able | (np.arange(num_devices) == found.home[..., None]))
        return judged(logits.masked_fill(~able, -torch.inf), home)

    @torch.no_grad()
    def _scores(self, *, by_path: bool = False) -> Scores:
        """The tables under the present weights; ``by_path`` has b-levels for scores."""
        tables = [table.numpy() for table in self.network(self._inputs)]
        if by_path or self._rules.by_path:
            level_s = self._inputs.levels.upward_s
            tables[0] = level_s / max(float(level_s.max()), np.finfo(float).tiny)
        return Scores(*(np.ascontiguousarray(table, dtype=np.float32) for table in tables))

    def _decoded(self, rules: Rules, seeds: torch.Tensor) -> list[Rollout]:
        scores = self._scores(by_path=rules.by_path)
        return self._rollouts(decode(self._inputs.tables, scores, rules, seeds.numpy().astype(np.uint64)))

    def _rollouts(self, found: Episodes) -> list[Rollout]:
        rollouts = []
        for b, (order, home) in enumerate(zip(found.order, found.home, strict=True)):
            rank = inverse_of(order)
            rollouts.append(Rollout(Plan(home[rank], rank), Episodes(*(column[b] for column in found))))
        return rollouts


def start_order(costs: ScheduleProblem, plan: Plan) -> IntArray:
    """[N] the ops in the order in which a work-conserving machine starts them under ``plan``; topological."""
    start_s = simulate(costs, plan.placement, priority=plan.order).start_s
    return np.lexsort((inverse_of(costs.topological_order), start_s))


def running(value: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """[B, N] for every step the sum of ``value`` [B, N] over what came by then, at step ``first`` [B, N], and stays.

    Each leaves behind the step that it is the value of.
    """
    come = torch.zeros_like(value).scatter_add(1, first, value)
    gone = torch.nn.functional.pad(value[:, :-1], (1, 0))
    return (come - gone).cumsum(dim=1)
