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
from hsdag.learning.decoding import Rules, decode, decode_by_step
from hsdag.learning.decoding_kernel import SLOPE
from hsdag.learning.decoding_records import Episodes, Scores
from hsdag.learning.doppler.candidates import judged_in_turn
from hsdag.learning.doppler.network import DualNetwork, OwnScores, Tensors
from hsdag.learning.doppler.states import IS_CANDIDATE, IS_PLACED, States
from hsdag.learning.inputs import Inputs
from hsdag.learning.networks import in_passes
from hsdag.learning.policy import Exploring, Judged, Policy, Rollout, seeds_from
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import simulate

ROWS = 2**13
"""Embeddings that one pass makes where messages pass in every step."""


class DualPolicy(Policy):
    """Draws an order and devices together; its plans always have an order.

    ``rules`` say which of the two is learned: with ``by_path`` the order is CRITICAL PATH's, with ``by_start`` the
    devices are. ``is_by_step`` passes messages before every decision, and not once per episode (App. G.3).
    """

    network: DualNetwork | OwnScores

    def __init__(
        self, network: DualNetwork | OwnScores, inputs: Inputs, rules: Rules, *, is_by_step: bool = False
    ) -> None:
        self.network, self._inputs, self._rules, self._is_by_step = network, inputs, rules, is_by_step

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
        """All log-probabilities in batched passes over the recorded decisions: one, or as many as ``ROWS`` asks for."""
        found = Episodes(*(np.stack(column) for column in zip(*(each.record for each in rollouts), strict=True)))
        log_p, entropy = self._judged_by_step(found) if self._is_by_step else self._judged_at_once(found)
        drawn = torch.from_numpy(found.log_p[:, :, self._learned]).float()
        owner = torch.arange(len(rollouts)).repeat_interleave(drawn[0].numel())
        return Judged(log_p.reshape(-1), drawn.reshape(-1), owner, entropy.reshape(-1))

    @property
    def _learned(self) -> list[int]:
        """Which of selection, 0, and placement, 1, are learned."""
        return [i for i, fixed in enumerate((self._rules.by_path, self._rules.by_start)) if not fixed]

    def _judged_at_once(self, found: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, N, P] log-probabilities of what is learned, and entropies, where messages pass once per episode."""
        net = self.network(self._inputs)
        parts = [(self._selection, self._placement)[i](net, found) for i in self._learned]
        log_p, entropy = (torch.stack(column, dim=-1) for column in zip(*parts, strict=True))
        return log_p, entropy

    def _judged_by_step(self, found: Episodes) -> tuple[torch.Tensor, ...]:
        """[B N, P] the same where messages pass in every step."""
        (b, n), states = found.order.shape, States(self._inputs.tables, found, found.order.shape[1])

        def judge_some(decisions: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.check()
            episode, step = np.divmod(decisions.numpy(), n)
            state = states.at(episode, step)
            net, op = self.network(self._inputs.copies(state)), torch.from_numpy(found.order[episode, step])
            parts = []
            if not self._rules.by_path:
                is_candidate = state[..., IS_CANDIDATE].bool()
                parts.append(judged(net.select.reshape(-1, n).masked_fill(~is_candidate, -torch.inf), op))
            if not self._rules.by_start:
                num_devices = found.able.shape[2]
                on = one_hot(torch.from_numpy(states.home[episode]), num_devices) * state[..., [IS_PLACED]]  # [M, N, D]
                taken = on.transpose(1, 2) @ net.seen.reshape(len(op), n, -1)
                at_hand = [torch.from_numpy(each[episode, step]) for each in (found.home, found.features, found.able)]
                rows = torch.arange(len(op)) * n + op
                parts.append(self._placed(net, rows, taken, on.sum(dim=1), *at_hand))
            log_p, entropy = (torch.stack(column, dim=-1) for column in zip(*parts, strict=True))
            return log_p, entropy

        return in_passes(judge_some, torch.arange(b * n), ROWS // n)

    def _selection(self, net: Tensors, found: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [B, N] of the ops selected at every step, and entropies [B, N]."""
        order, ready = torch.from_numpy(found.order), torch.from_numpy(found.ready)
        log_p, entropy = judged_in_turn(net.select.double()[order], ready.gather(1, order))
        return log_p.float(), entropy.float()

    def _placement(self, net: Tensors, found: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities [B, N] of the devices chosen at every step, and entropies [B, N]."""
        order, home = torch.from_numpy(found.order), torch.from_numpy(found.home)
        on = one_hot(home, found.able.shape[2]).float()  # [B, N, D]
        taken, count = (on[..., None] * net.seen[order][:, :, None, :]).cumsum(dim=1), on.cumsum(dim=1)
        taken, count = pad(taken[:, :-1], (0, 0, 0, 0, 1, 0)), pad(count[:, :-1], (0, 0, 1, 0))
        return self._placed(
            net, order, taken, count, home, torch.from_numpy(found.features), torch.from_numpy(found.able)
        )

    def _placed(
        self,
        net: Tensors,
        op: torch.Tensor,
        taken: torch.Tensor,
        count: torch.Tensor,
        home: torch.Tensor,
        features: torch.Tensor,
        able: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of devices ``home`` [...] for ops [...], and entropies, by eq. 6 and 7.

        Devices had contributions ``taken`` [..., D, W] of ``count`` [..., D] ops, and ``features`` [..., D, F].
        """
        if self._rules.mean_of_seen:
            taken = taken / count.clamp(min=1.0)[..., None]
        hidden = torch.relu(features @ net.inner + net.inner_bias)
        total = net.node[op][..., None, :] + taken + hidden @ net.outer
        logits = leaky_relu(total, SLOPE) @ net.out + features @ net.direct + net.own[op]
        able = able | one_hot(home, able.shape[-1]).bool()
        return judged(logits.masked_fill(~able, -torch.inf), home)

    @torch.no_grad()
    def _scores(self, inputs: Inputs, *, by_path: bool) -> list[Scores]:
        """The tables of every copy of the problem under the present weights; ``by_path`` has b-levels for scores."""
        net, n = Scores(*(each.numpy() for each in self.network(inputs))), len(self._inputs.x)
        if by_path:
            level_s = self._inputs.levels.upward_s
            share = level_s / max(float(level_s.max()), np.finfo(float).tiny)
            net = net._replace(select=np.tile(share, len(net.select) // n))
        net = Scores(*(np.ascontiguousarray(table, dtype=np.float32) for table in net))
        parts = [slice(first, first + n) for first in range(0, len(net.select), n)]
        return [
            net._replace(select=net.select[part], node=net.node[part], seen=net.seen[part], own=net.own[part])
            for part in parts
        ]

    def _decoded(
        self, rules: Rules, seeds: NDArray[np.uint64], forced: tuple[IntArray, IntArray] | None = None
    ) -> list[Rollout]:
        tables = self._inputs.tables
        if not self._is_by_step:
            return self._rollouts(
                decode(tables, self._scores(self._inputs, by_path=rules.by_path)[0], rules, seeds, forced)
            )
        size = max(1, ROWS // len(self._inputs.x))

        def scores_at(found: Episodes, step: int) -> list[Scores]:
            states, scores = States(tables, found, step), list[Scores]()
            for first in range(0, len(seeds), size):
                self.check()
                episode = np.arange(first, min(first + size, len(seeds)))
                state = states.at(episode, np.full(len(episode), step))
                scores += self._scores(self._inputs.copies(state), by_path=rules.by_path)
            return scores

        num_features = self.network.num_device_features
        return self._rollouts(decode_by_step(tables, num_features, scores_at, rules, seeds, forced))

    def _rollouts(self, found: Episodes) -> list[Rollout]:
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
