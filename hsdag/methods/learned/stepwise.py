"""Policies whose networks place units step by step, a few at a time or all at once (RNN, GDP, Placeto).

These networks do not know the schedule that results from a placement. If a policy *sees*, which is in none of the
papers, a compiled loop keeps the schedule of the units placed so far and adds a learned linear function of the features
of devices to the logits of the next units; devices whose memory is full cannot be chosen.

Legend: B plans, S units of a step, U placement units, D devices, F features of a device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hsdag.base.kernels import bare, inlined
from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.methods.learned.decoding import (
    FEATURES,
    OWN_PACE,
    OWN_RANGE,
    SEEN_PACE,
    Decoder,
    Episodes,
    Float32Array,
    Rules,
    Scores,
    choose_device,
    describe,
    look_around,
)
from hsdag.methods.learned.networks import uniform_costs, within
from hsdag.methods.learned.policy import Exploring, Likelihood, LikelihoodPolicy, Rollout, drawn, log_p_of
from hsdag.methods.lists.schedule import ListState, Outlook, assign_and_free, offer, permit, send, tails_of
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import Tables, levels_of, tables_of

SEEN_NUMBERS = 3 * len(FEATURES)
"""Approximate count of numbers that training keeps for each unit of a plan and each device if a policy sees."""


class Seeing(nn.Module):
    """Learned weights of the features of devices, and a learned score of every unit on every device."""

    def __init__(self, num_units: int, num_devices: int) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(len(FEATURES)))
        self.own = nn.Parameter(torch.zeros(num_units, num_devices))

    def forward(self, logits: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
        """Return logits [..., S, D] of units [S], to which their scores are added."""
        return logits + within(OWN_PACE * self.own[units], OWN_RANGE)

    @property
    def weights(self) -> torch.Tensor:
        """Return the weights of the features of devices [F]."""
        return SEEN_PACE * self.seen


def order_of_visits(problem: Problem, *, sees: bool) -> torch.Tensor:
    """Return the units [U] in topological order; if a policy sees, those with the longest path to the end first."""
    costs = problem.costs or uniform_costs(problem)
    if not sees:
        return torch.tensor(costs.topological_order)
    return torch.from_numpy(np.lexsort((inverse_of(costs.topological_order), -levels_of(tables_of(costs)).upward_s)))


def tables_and_tails(costs: ScheduleProblem) -> tuple[Tables, FloatArray]:
    """Return the tables of a problem, and the least seconds that follow each op on each device [N, D]."""
    tables = tables_of(costs)
    return tables, tails_of(tables)


class Schedules:
    """B partial schedules that are extended together, unit by unit in the same topological order."""

    def __init__(self, tables: Tables, tail_s: FloatArray, count: int) -> None:
        self._states = _many(ListState.of(tables), count)
        self._looks = _many(Outlook.of(tables), count)
        nothing = np.zeros((0, len(FEATURES)), np.float32)
        scores = Scores.linear(nothing[:, 0], nothing, nothing)
        self._decoder = Decoder.of(tables, tail_s, scores, Rules())

    def follow(self, units: IntArray, devices: IntArray) -> Episodes:
        """Place units [S] on devices [B, S], and return the records."""
        logits = np.zeros((*devices.shape, self._decoder.t.time_s.shape[1]), np.float32)
        weights = np.zeros(len(FEATURES), np.float32)
        return self.extend(units, logits, weights, Exploring(), np.full(devices.shape, -1.0), devices)

    def extend(
        self,
        units: IntArray,
        logits: Float32Array,
        weights: Float32Array,
        exploring: Exploring,
        random: FloatArray,
        home: IntArray,
    ) -> Episodes:
        """Place units one after another, and return the records.

        Args:
            units: Units to place [S].
            logits: Logits of devices without those of their features [B, S, D].
            weights: Weights of the features of devices [F].
            exploring: Share of uniform decisions, and temperature of the others.
            random: Numbers in [0, 1) by which to draw; where they are negative, the device in ``home`` is taken [B, S].
            home: Devices that are taken where none are drawn [B, S].
        """
        b, s, d = logits.shape
        episodes = Episodes(
            order=np.zeros((b, s), np.int64),
            home=home.astype(np.int64),
            ready=np.zeros((b, 0), np.int64),
            log_p=np.zeros((b, s, 2)),
            features=np.zeros((b, s, d, len(FEATURES)), np.float32),
            able=np.zeros((b, s, d), np.bool_),
        )
        rules = Rules((1.0, exploring.heat), (0.0, exploring.share))
        direct = np.broadcast_to(weights, (s, len(weights))).copy()
        decoder = self._decoder._replace(rules=rules, s=self._decoder.s._replace(direct=direct))
        extend_many(decoder, self._states, self._looks, units, logits, random, episodes)
        return episodes


def _many(one: Any, count: int) -> Any:
    """Return a tuple with each array of ``one`` repeated ``count`` times along a new first dimension."""
    return one._make(np.repeat(array[None], count, axis=0) for array in one)


@bare
def extend_many(
    c: Decoder,
    states: ListState,
    looks: Outlook,
    units: IntArray,
    logits: Float32Array,
    random: FloatArray,
    episodes: Episodes,
) -> None:
    """Place units one after another in each of B schedules, as ``decode_many`` does.

    Args:
        c: Inputs, and buffers that all schedules share.
        states: States of the schedules, stacked.
        looks: Outlooks of the schedules, stacked.
        units: Units to place [S].
        logits: Logits of devices without those of their features [B, S, D].
        random: Numbers in [0, 1) by which to draw; where they are negative, the device in ``episodes`` is taken [B, S].
        episodes: Arrays that records are written to.
    """
    for b in range(len(logits)):
        at = _decoder_of(c, states, looks, logits, b)
        state, w = at.state, at.w
        for i in range(len(units)):
            v = units[i]
            look_around(at, v)
            permit(c.t, w, v, 1.0, episodes.able[b, i])
            describe(at, v, episodes.features[b, i])
            home = choose_device(at, v, i, episodes, b, i, random[b, i])
            episodes.home[b, i] = home
            assign_and_free(c.t, state, w, v, home, max(state.free_s[home], w.ready_s[v, home]))
            send(c.t, state, w, v, home)
            offer(c.t, state, w, v, 0)


@inlined
def _decoder_of(c: Decoder, states: ListState, looks: Outlook, logits: Float32Array, b: int) -> Decoder:
    """Return the decoder of schedule b, which shares its arrays with those of all schedules."""
    state = ListState(
        states.device[b],
        states.start_s[b],
        states.end_s[b],
        states.sequence[b],
        states.waiting[b],
        states.held_bytes[b],
        states.limit_bytes[b],
        states.free_s[b],
        states.ready[b],
    )
    w = Outlook(
        looks.candidate[b],
        looks.readers[b],
        looks.ready_s[b],
        looks.work_s[b],
        looks.sent_s[b],
        looks.input_share[b],
        looks.memory[b],
    )
    scores = Scores(*c.s[:-1], logits[b])
    return Decoder(*c[:-3], scores, state, w)


Choose = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function that chooses the devices [B, S] of a step, given logits [B, S, D] and the units [S] of the step."""


class StepwiseNetwork(nn.Module):
    """A network that has devices chosen for some units at a time, for every unit once, in ``order`` [U]."""

    def __init__(self, order: torch.Tensor, num_devices: int) -> None:
        super().__init__()
        self.order = order
        self.seeing = Seeing(len(order), num_devices)

    @abstractmethod
    def decode(self, count: int, choose: Choose) -> None:
        """Have the devices of ``count`` plans chosen, by one call of ``choose`` per step.

        The steps and their units are the same for all plans, and do not depend on the choices.
        """

    def told(self, devices: torch.Tensor) -> torch.Tensor:
        """Return logits [B, U, D], in the order of decisions, when ``devices`` [B, U] are chosen."""
        steps: list[torch.Tensor] = []

        def follow(logits: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
            steps.append(logits)
            return devices[:, units]

        self.decode(len(devices), follow)
        return torch.cat(steps, dim=1)


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions of a plan; all fields but ``device`` are in the order of decisions."""

    device: torch.Tensor  # [U] device of each unit, by unit
    log_p: torch.Tensor  # [U] log-probabilities that devices were drawn with, or [0] if they were not drawn
    features: torch.Tensor  # [U, D, F] features of devices, or [0] if the policy does not see
    able: torch.Tensor  # [U, D] whether the unit could be placed on a device, or [0] if the policy does not see

    @classmethod
    def of(cls, devices: torch.Tensor, log_ps: list[torch.Tensor], steps: Sequence[Episodes]) -> list[Decisions]:
        """Return the decisions of B plans.

        Args:
            devices: Devices of units [B, U].
            log_ps: Log-probabilities that they were drawn with, [B, S] for each step; empty if they were not drawn.
            steps: Records of each step; empty if the policy does not see.
        """
        undecided = torch.zeros(len(devices), 0)
        log_p = torch.cat(log_ps, dim=1) if log_ps else undecided
        features = able = undecided
        if steps:
            features = torch.from_numpy(np.concatenate([step.features for step in steps], axis=1))
            able = torch.from_numpy(np.concatenate([step.able for step in steps], axis=1))
        return list(map(cls, devices, log_p, features, able))

    @classmethod
    def along(
        cls, order: torch.Tensor, devices: torch.Tensor, tables: tuple[Tables, FloatArray] | None
    ) -> list[Decisions]:
        """Return the decisions, in ``order`` [U], that lead to devices [B, U]; no tables if the policy does not see."""
        steps = list[Episodes]()
        if tables is not None:
            steps = [Schedules(*tables, len(devices)).follow(order.numpy(), devices[:, order].numpy())]
        return cls.of(devices, [], steps)


class Draws:
    """B plans that are drawn together, step by step.

    Args:
        seeing: Weights of the features of devices, and scores, which count if there are schedules.
        schedules: Partial schedules, which the draws extend; None if the policy does not see.
        exploring: Share of uniform decisions, and temperature of the others.
        generator: Source of randomness.
    """

    def __init__(
        self, seeing: Seeing, schedules: Schedules | None, exploring: Exploring, generator: torch.Generator
    ) -> None:
        self._seeing, self._schedules = seeing, schedules
        self._exploring, self._generator = exploring, generator
        self._log_ps = list[torch.Tensor]()
        self._steps = list[Episodes]()

    def choose(self, logits: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
        """Draw the devices [B, S] of units [S] by logits [B, S, D], minus infinity where a device lacks support."""
        if self._schedules is None:
            devices, log_p = drawn(logits, self._exploring, self._generator)
        else:
            random = torch.rand(logits.shape[:2], generator=self._generator, dtype=torch.float64).numpy()
            scored = np.ascontiguousarray(self._seeing(logits, units).detach().numpy())
            weights = self._seeing.weights.detach().numpy()
            home = np.zeros(random.shape, np.int64)
            step = self._schedules.extend(units.numpy(), scored, weights, self._exploring, random, home)
            self._steps.append(step)
            devices, log_p = torch.from_numpy(step.home), torch.from_numpy(step.log_p[..., 1])
        self._log_ps.append(log_p.float())
        return devices

    def decisions(self, devices: torch.Tensor) -> list[Decisions]:
        """Return the decisions that led to the devices of all units [B, U]."""
        return Decisions.of(devices, self._log_ps, self._steps)


class StepwisePolicy(LikelihoodPolicy):
    """A policy whose decisions are the devices of units; if it sees, units run in the order of decisions."""

    network: StepwiseNetwork

    def __init__(self, network: StepwiseNetwork, problem: Problem, *, sees: bool) -> None:
        self.network = network
        self._supported = torch.from_numpy(problem.supported.copy())
        self._tables = tables_and_tails(problem.costs or uniform_costs(problem)) if sees else None
        self._rank = inverse_of(network.order.numpy()) if sees else None

    @torch.no_grad()
    def draw(self, count: int, exploring: Exploring, generator: torch.Generator) -> list[Rollout]:
        """Draw ``count`` plans at once; a unit is never placed on a device that does not support it."""
        devices = torch.zeros((count, len(self._supported)), dtype=torch.int64)
        schedules = None if self._tables is None else Schedules(*self._tables, count)
        draws = Draws(self.network.seeing, schedules, exploring, generator)

        def choose(logits: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
            devices[:, units] = draws.choose(logits.masked_fill(~self._supported[units], -torch.inf), units)
            return devices[:, units]

        self.network.decode(count, choose)
        return self._rollouts(draws.decisions(devices))

    def replay(self, plans: Sequence[Plan], generator: torch.Generator) -> list[Rollout]:  # noqa: ARG002
        """Return rollouts whose decisions are the devices of plans."""
        devices = torch.tensor(np.stack([plan.placement for plan in plans]))
        return self._rollouts(Decisions.along(self.network.order, devices, self._tables))

    def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:
        """Return log-probabilities of all decisions, computed for all plans at once."""
        records: list[Decisions] = [rollout.record for rollout in rollouts]
        devices, order = torch.stack([record.device for record in records]), self.network.order
        logits, able = self.network.told(devices), self._supported[order]
        if self._tables is not None:
            features, able = (
                torch.stack([getattr(record, name) for record in records]) for name in ("features", "able")
            )
            logits = self.network.seeing(logits, order) + features @ self.network.seeing.weights
            able = able.scatter(2, devices[:, order, None], value=True)
        log_p, entropy = log_p_of(logits.masked_fill(~able, -torch.inf), devices[:, order])
        owner = torch.arange(len(rollouts)).repeat_interleave(devices.shape[1])
        drawn_with = torch.cat([record.log_p for record in records])
        return Likelihood(log_p.reshape(-1), drawn_with, owner, entropy.reshape(-1))

    def _rollouts(self, decisions: Sequence[Decisions]) -> list[Rollout]:
        return [Rollout(Plan(of_plan.device.numpy(), self._rank), of_plan) for of_plan in decisions]
