"""Policy and placer of ``doppler``: one policy selects ops (SEL), another one places them (PLC) (DOPPLER, §4).

Legend: B plans, N ops, K levels, P pairs, D devices, M decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import leaky_relu, one_hot, pad

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.methods.incumbent import Incumbent
from hsdag.methods.learned import decoding
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.decoding import FEATURES, SLOPE, Episodes, Rules, Scores, decode, order_of
from hsdag.methods.learned.doppler.network import SIMULATED_KEPT, SIMULATED_PLANS, DopplerConfig, DualNetwork
from hsdag.methods.learned.networks import network_inputs
from hsdag.methods.learned.order import log_p_in_turn
from hsdag.methods.learned.policy import GREEDY, Exploring, Likelihood, LikelihoodPolicy, Policy, Rollout, log_p_of
from hsdag.methods.learned.training import Trainer
from hsdag.methods.lists.schedule import list_schedule, tails_of
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.evaluators.schedule import ScheduleEvaluator

SIMULATED_SHARE = 0.2
"""Largest share of the budget that training on simulated plans may take in a search that measures plans."""
EARLIEST = np.zeros(len(FEATURES), np.float32)
"""Weights of the features of a device with which the earliest start wins, and among equal ones the earliest end."""
EARLIEST[decoding.START], EARLIEST[decoding.END_LATER] = -1e9, -1.0


class DualPolicy(LikelihoodPolicy):
    """A policy over orders and devices of ops; its plans always have an order.

    If one of the two is not learned, it is CRITICAL PATH's: the longest path to the end is first, and an op is placed
    where it starts earliest.
    """

    network: DualNetwork
    of_problem = ("own.",)

    def __init__(self, network: DualNetwork, costs: ScheduleProblem, options: DopplerConfig) -> None:
        self.network = network
        self._options = options
        self._inputs = network_inputs(costs, is_wide=options.wide_features)
        self._tail_s = tails_of(self._inputs.tables)
        self._learns = options.learns_order, options.learns_devices

    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """Draw ``count`` plans; log-probabilities take the share of uniform decisions into account."""
        random = torch.rand((count, self._inputs.costs.num_ops, 2), generator=generator, dtype=torch.float64)
        return self._decoded(exploring, random.numpy())

    def teacher(self, _: torch.Generator) -> list[Rollout]:
        """Return the decisions of CRITICAL PATH (stage I).

        It selects the op with the longest path to the end, and places it where it starts earliest.
        """
        schedule = list_schedule(self._inputs.tables, self._inputs.levels.upward_s, by_start=True)
        return self._follow(schedule.sequence[None], schedule.device[schedule.sequence][None])

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:  # noqa: ARG002
        """Return decisions that lead to plans: ops in the order in which they start, which suits every executor."""
        order = np.stack([order_of(self._inputs.costs, plan) for plan in plans])
        return self._follow(order, np.stack([plan.placement[by] for plan, by in zip(plans, order, strict=True)]))

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """Return log-probabilities of SEL and PLC, computed in one batched pass over the recorded decisions."""
        episodes = Episodes(
            *(np.stack(column) for column in zip(*(rollout.record for rollout in rollouts), strict=True))
        )
        learned = [i for i, learns in enumerate(self._learns) if learns]
        net = self.network(self._inputs)
        parts = [(self._selection, self._placement)[i](net, episodes) for i in learned]
        log_p, entropy = (torch.stack(column, dim=-1) for column in zip(*parts, strict=True))
        drawn = torch.from_numpy(episodes.log_p[:, :, learned]).float()
        owner = torch.arange(len(rollouts)).repeat_interleave(drawn[0].numel())
        return Likelihood(log_p.reshape(-1), drawn.reshape(-1), owner, entropy.reshape(-1))

    def _selection(self, net: Scores[torch.Tensor], episodes: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities [B, N] of the ops selected at every step, and entropies [B, N]."""
        order, ready = torch.from_numpy(episodes.order), torch.from_numpy(episodes.ready)
        log_p, entropy = log_p_in_turn(net.select.double()[order], ready.gather(1, order))
        return log_p.float(), entropy.float()

    def _placement(self, net: Scores[torch.Tensor], episodes: Episodes) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities [B, N] of the devices chosen at every step, and entropies [B, N] (eq. 6 and 7)."""
        order, home, able = map(torch.from_numpy, (episodes.order, episodes.home, episodes.able))
        on = one_hot(home, able.shape[2]).float()  # [B, N, D]
        taken, count = (on[..., None] * net.seen[order][:, :, None, :]).cumsum(dim=1), on.cumsum(dim=1)
        taken, count = pad(taken[:, :-1], (0, 0, 0, 0, 1, 0)), pad(count[:, :-1], (0, 0, 1, 0))  # sums before each step
        if self._options.mean_of_embeddings:
            taken = taken / count.clamp(min=1.0)[..., None]
        features = torch.from_numpy(episodes.features)
        hidden = torch.relu(features @ net.inner + net.inner_bias)
        total = net.node[order][..., None, :] + taken + hidden @ net.outer
        logits = (
            leaky_relu(total, SLOPE) @ net.out
            + torch.einsum("bndf,bnf->bnd", features, net.direct[order])
            + net.bias[order]
        )
        return log_p_of(logits.masked_fill(~(able | on.bool()), -torch.inf), home)

    def _follow(self, order: IntArray, home: IntArray) -> list[Rollout]:
        """Return episodes that follow the ops [B, N] and devices [B, N] of every step."""
        return self._decoded(Exploring(), np.zeros((*order.shape, 2)), (order, home))

    @torch.no_grad()
    def _decoded(
        self, exploring: Exploring, random: FloatArray, forced: tuple[IntArray, IntArray] | None = None
    ) -> list[Rollout]:
        """Return episodes that are decoded with the tables of the present weights.

        Args:
            exploring: How ops and devices are drawn.
            random: Numbers in [0, 1) by which they are drawn [B, N, 2].
            forced: Ops [B, N] and devices [B, N] of every step, to be recorded instead of drawn ones.
        """
        tables = (table.numpy() for table in self.network(self._inputs))
        scores = Scores(*(np.ascontiguousarray(table, dtype=np.float32) for table in tables))
        if not self._options.learns_order:
            scores = scores._replace(select=self._inputs.levels.upward_s.astype(np.float32))
        if not self._options.learns_devices:
            alike = {"out": 0 * scores.out, "bias": 0 * scores.bias}
            scores = scores._replace(direct=0 * scores.direct + EARLIEST[: scores.direct.shape[1]], **alike)
        order, device = ((exploring.heat, exploring.share) if learns else (GREEDY, 0.0) for learns in self._learns)
        rules = Rules((order[0], device[0]), (order[1], device[1]), self._options.mean_of_embeddings)
        episodes = decode(self._inputs.tables, self._tail_s, scores, rules, random, forced)
        rollouts = []
        for b, (order, home) in enumerate(zip(episodes.order, episodes.home, strict=True)):
            rank = inverse_of(order)
            rollouts.append(Rollout(Plan(home[rank], rank), Episodes(*(column[b] for column in episodes))))
        return rollouts


class DopplerPlacer(LearnedPlacer[DopplerConfig]):
    """Placer that learns the order and the devices of units.

    Stage I imitates CRITICAL PATH, stage II learns from simulated plans, and stage III from measured ones. If plans are
    simulated, there is no stage III; if they are measured, it follows stage II after ``simulated_updates``.
    """

    name = "doppler"
    gives_order = True
    options_type = DopplerConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> DualPolicy:
        """Return an untrained policy of SEL and PLC for the costs of the problem's units."""
        size = (problem.num_units, problem.num_devices) if self.options.own_scores else None
        return DualPolicy(DualNetwork(self.options, generator, size), problem.known_costs, self.options)

    def learns_before(self, policy: Policy, incumbent: Incumbent, generator: torch.Generator) -> bool:
        """Train the policy on simulated plans (stage II) before plans are measured (stage III).

        Return whether the policy is trained, here or in the search that is resumed. Simulated plans do not count as
        evaluations of the search.
        """
        if incumbent.is_cheap or self.options.simulated_updates == 0:
            return False
        if incumbent.checkpoint is not None and incumbent.checkpoint.load() is not None:
            return True
        problem = incumbent.problem
        trainer = Trainer(
            self.name,
            policy,
            ScheduleEvaluator(incumbent.costs, problem.semantics, problem.objective),
            replace(
                self.options,
                updates=self.options.simulated_updates,
                plans_per_update=SIMULATED_PLANS,
                kept_per_update=SIMULATED_KEPT,
            ),
            generator,
            singles=problem.alone,
            teacher=self.teacher(policy, problem) if self.options.teacher_updates else None,
        )
        trainer.begin()
        for _ in range(self.options.simulated_updates):
            if incumbent.is_over(SIMULATED_SHARE):
                break
            trainer.update()
        return True

    def teacher(self, policy: Policy, problem: Problem) -> Callable[[torch.Generator], list[Rollout]]:  # noqa: ARG002
        """Return the function that gives the decisions of CRITICAL PATH (stage I)."""
        assert isinstance(policy, DualPolicy)
        return policy.teacher
