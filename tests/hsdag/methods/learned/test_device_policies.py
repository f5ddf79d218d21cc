"""What holds for several methods: draws, their probabilities and gradients, that these are all there is to a search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hsdag.methods.incumbent import Limits
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.networks import ENCODERS
from hsdag.methods.learned.policy import Aim, Exploring, LikelihoodPolicy, Policy, Rollout
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Order, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import Evaluator, Score
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.learned.policies import generator
from tests.hsdag.methods.searches import not_none

TINY = {
    "placeto": {"width": "12", "embedding": "8", "head": "8", "rounds": "2", "step": "4"},
    "gdp": {"width": "8", "heads": "2", "layers": "2", "segment": "16"},
    "rnn": {"width": "6", "feeds_context": "true"},
    "hsdag": {"hidden": "16", "score_bias": "0"},
    "doppler": {"width": "8", "layers": "2", "begins_as": "nothing", "own_scores": "false"},
}
PARTS = {
    "placeto": ("embed", "send.0", "send.1", "receive.0", "receive.1", "tell", "pool", "choose"),
    "gdp": ("encoder.input", "encoder.rounds", "attention.0.attention", "attention.0.distance", "attention.1", "out"),
    "rnn": ("features", "neighbours", "encoder", "first", "decoder", "device", "query", "key", "score", "out"),
    "doppler": ("encoder.input", "encoder.rounds", "features", "select", "node", "seen", "inner", "outer", "out",
                "direct"),
}  # fmt: skip
PARTS |= {method: (*PARTS[method], "seeing") for method in ("placeto", "gdp", "rnn")}
NOT_IN_PAPERS = ("attention.0.distance", "direct", "seeing")
PACED = {"seeing": 1e-2, "direct": 1e-2}
"""Parameters that count many times as much as those of networks, and how far apart they are drawn."""
STEPS = {"gdp": 1e-3, "doppler": 1e-3}
"""By how much parameters are moved where log-probabilities bend much, else 3e-3."""
METHODS = pytest.mark.parametrize("method", sorted(TINY))
BY_TORCH = pytest.mark.parametrize("method", sorted(PARTS))
"""Those whose log-probabilities torch differentiates."""
BY_UNIT = pytest.mark.parametrize("method", ["gdp", "placeto", "rnn"])
PRESETS = pytest.mark.parametrize("preset", ["default", "paper"])
EVERY_PART = pytest.mark.parametrize(
    ("method", "preset", "part"),
    [
        (method, preset, part)
        for preset in ("default", "paper")
        for method, parts in PARTS.items()
        for part in parts
        if preset == "default" or part not in NOT_IN_PAPERS
    ],
)
PLAIN = Exploring()
NO_LEARNING = {"learning_rate": "0", "last_learning_rate": "0"}
FEW_UPDATES = {"updates": "20", "plans_per_update": "16", "elites": "0", "greedy_every": "0"}


def placer_of(method: str, preset: str = "default", **changes: str) -> LearnedPlacer[Any]:
    placer = make_placer(method, preset, {**TINY[method], **changes}, is_cheap=True)
    assert isinstance(placer, LearnedPlacer)
    return placer


def policy_of(
    problem: ScheduleProblem, method: str, preset: str = "default", *, trained: bool = True, **changes: str
) -> Policy:
    """A tiny policy; ``trained`` draws the last layers too, which are zero otherwise."""
    policy = placer_of(method, preset, **changes).policy(problem_of(problem), generator(1))
    if trained:
        for name, parameter in policy.network.named_parameters():
            if parameter.requires_grad and parameter.dim() and not parameter.any():
                nn.init.normal_(parameter, std=PACED.get(name.split(".")[0], 1.0), generator=generator(2))
    return policy


@BY_TORCH
@PRESETS
@pytest.mark.parametrize("exploring", [PLAIN, Exploring(heat=2.0)])
def test_the_network_gives_decisions_the_probability_they_were_drawn_with(
    method: str, preset: str, exploring: Exploring
) -> None:
    policy = policy_of(random_problem(3, 14, 3), method, preset)
    assert isinstance(policy, LikelihoodPolicy)
    now = policy.likelihood(policy.draw(5, exploring, generator()))
    alike = bool(torch.allclose(now.log_p, now.drawn, atol=2e-4))
    assert alike == (exploring.heat == 1.0)
    assert bool((now.entropy > 0).any())


@pytest.mark.parametrize("method", ["doppler", "gdp", "placeto", "rnn"])
def test_a_share_of_uniform_decisions_is_part_of_their_probability(method: str) -> None:
    problem = random_problem(3, 14, 3)
    policy = policy_of(replace(problem, time_s=np.nan_to_num(problem.time_s, nan=4.0)), method)
    assert isinstance(policy, LikelihoodPolicy)
    now = policy.likelihood(policy.draw(5, Exploring(share=1.0), generator()))
    of_devices = now.drawn[1::2] if method == "doppler" else now.drawn
    np.testing.assert_allclose(of_devices, np.log(1 / 3), atol=1e-6)


@METHODS
def test_an_untrained_policy_prefers_no_device(method: str) -> None:
    problem = random_problem(3, 14, 3)
    policy = policy_of(replace(problem, time_s=np.nan_to_num(problem.time_s, nan=4.0)), method, trained=False)
    drawn = np.concatenate([rollout.plan.placement for rollout in policy.draw(100, PLAIN, generator())])
    best = np.concatenate([policy.best(generator(i)).plan.placement for i in range(30)])
    for devices in (drawn, best):
        assert np.abs(np.bincount(devices, minlength=3) / len(devices) - 1 / 3).max() < 0.08


@METHODS
def test_devices_that_lack_an_op_are_never_drawn(method: str) -> None:
    problem = random_problem(3, 14, 3)
    time_s = problem.time_s.copy()
    time_s[::2, 0] = np.nan
    lacking = replace(problem, time_s=time_s)
    for rollout in policy_of(lacking, method).draw(8, Exploring(share=0.5), generator()):
        assert problem_of(lacking).is_legal(rollout.plan.placement)


@METHODS
def test_a_plan_is_replayed(method: str) -> None:
    problem = random_problem(1, 14, 3)
    plan = Plan(problem_of(problem).supported.argmax(axis=1))
    (rollout,) = policy_of(problem, method).replay([plan], generator())
    assert np.array_equal(rollout.plan.placement, plan.placement)


@EVERY_PART
def test_the_gradient_of_every_part_is_the_numerical_derivative(method: str, preset: str, part: str) -> None:
    """Along the gradient and a direction drawn at random, in which what a cut gradient lacks counts too."""
    policy = policy_of(random_problem(3, 14, 3), method, preset)
    assert isinstance(policy, LikelihoodPolicy)
    rollouts = policy.draw(3, PLAIN, generator())
    chosen = [p for name, p in policy.network.named_parameters() if name.startswith(part)]
    gradients = torch.autograd.grad(policy.likelihood(rollouts).log_p.sum(), chosen)
    length = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    assert length > 1e-4
    rng = generator(4)
    drawn = [torch.randn(p.shape, generator=rng) for p in chosen]
    scale = length / torch.stack([d.square().sum() for d in drawn]).sum().sqrt()
    direction = [g + scale * d for g, d in zip(gradients, drawn, strict=True)]
    expected = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True)) / float(length)
    step, values = STEPS.get(method, 3e-3) * PACED.get(part, 1.0), []
    with torch.no_grad():
        for sign in (1.0, -2.0):  # a step in that direction, then as far back from where it began
            for parameter, each in zip(chosen, direction, strict=True):
                parameter.add_(each / length, alpha=sign * step)
            values.append(policy.likelihood(rollouts).log_p.double().sum())
    assert float(values[0] - values[1]) / (2 * step) == pytest.approx(
        expected, rel=0.04, abs=2e-4 / PACED.get(part, 1.0)
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("method", ["gdp", "doppler", "hsdag"])
def test_a_method_takes_any_encoder_and_learns_through_it(method: str, encoder: str) -> None:
    policy = policy_of(random_problem(3, 14, 3), method, encoder=encoder)
    policy.loss(policy.draw(2, PLAIN, generator()), torch.ones(2), Aim(None, 0.0, 1.0)).backward()  # type: ignore[no-untyped-call]
    rounds = [module for name, module in policy.network.named_modules() if re.search(r"encoder\.rounds\.\d$", name)]
    learned = [sum(float(p.grad.abs().sum()) for p in each.parameters() if p.grad is not None) for each in rounds]
    assert len(learned) >= 2
    assert min(learned) > 0


def row_of(times: list[list[float]]) -> ScheduleProblem:
    """Ops in a row."""
    links: dict[str, Any] = {"link_latency_s": 1.0, "link_bandwidth_bytes_per_s": 1.0}
    edges = [(v, v + 1) for v in range(len(times) - 1)]
    return ScheduleProblem.from_arrays(times, edges, output_bytes=1, **links)


@BY_UNIT
def test_the_first_updates_imitate_critical_path_where_asked_for(method: str) -> None:
    """Nothing is evaluated meanwhile, and the search ends with the last of them."""
    problem = row_of([[4.0, 1.0, 4.0]] * 12)
    few = {"updates": "25", "teacher_updates": "25", "plans_per_update": "2", "single_devices_first": "false"}
    placer = placer_of(method, **few, learning_rate="0.03")
    recorder = RecordingEvaluator(ScheduleEvaluator(problem, problem_of(problem).semantics))
    placer.search(problem_of(problem), recorder, Limits(seed=1))
    assert recorder.events == []
    taught = next(make_placer("critical-path").proposals(problem_of(problem), 0)).placement  # type: ignore[attr-defined]
    policy = not_none(placer.trainer).policy
    assert (policy.best(generator()).plan.placement == taught).mean() > 0.8


@METHODS
def test_all_plans_of_a_search_are_single_devices_and_draws_of_its_policy(method: str) -> None:
    """To the end of its budget: no other method comes first or last. A policy that never learns cannot imitate one."""
    problem = problem_of(random_problem(3, 40, 3))
    placer, own = placer_of(method, **NO_LEARNING), {*problem.alone}
    made = placer.policy

    def noting(*given: Any) -> Policy:
        policy = made(*given)
        draw, best = policy.draw, policy.best

        def noted(rollouts: list[Rollout]) -> list[Rollout]:
            own.update(plan for rollout in rollouts for plan in (*rollout.trail, rollout.plan))
            return rollouts

        policy.draw = lambda *how: noted(draw(*how))  # type: ignore[method-assign]
        policy.best = lambda *how: noted([best(*how)])[0]  # type: ignore[method-assign]
        return policy

    placer.policy = noting  # type: ignore[method-assign, assignment]
    recorder = RecordingEvaluator(ScheduleEvaluator.of(problem), Budget(evaluations=200))
    result = placer.search(problem, recorder, Limits(600.0))
    assert {result.plan, *(event.plan for event in recorder.events)} <= own
    assert len(recorder.events) == recorder.num_evaluations == 200


@METHODS
def test_what_a_policy_draws_after_twenty_updates_is_faster_than_without_learning(method: str) -> None:
    """Half of the ops are four times as fast on one device, half on another; the drawn plans' mean in both cases."""
    problem = row_of([[4.0, 1.0, 4.0]] * 6 + [[4.0, 4.0, 1.0]] * 6)
    evaluator, means_s = ScheduleEvaluator.of(problem_of(problem)), []
    for changes in (NO_LEARNING, {"learning_rate": "0.01", "last_learning_rate": "0.01"}):
        placer = placer_of(method, **FEW_UPDATES, **changes)
        placer.search(problem_of(problem), evaluator, Limits(seed=1))
        plans = [draw.plan for draw in not_none(placer.trainer).policy.draw(64, PLAIN, generator())]
        means_s.append(np.mean([score.value for score in evaluator.evaluate(plans)]))
    assert means_s[1] < 0.8 * means_s[0]


def test_what_failed_has_a_value_where_it_overfills_a_memory_alone() -> None:
    """By ten times the share of the memory that the fullest device is over; of Placeto, as its paper says."""
    problem = replace(row_of([[1.0, 1.0]] * 4), weight_bytes=np.full(4, 2.0), memory_bytes=np.full(2, 1e6))
    limited = replace(problem, memory_bytes=np.full(2, 4.0))
    everything = Plan(np.zeros(4, dtype=np.int64))
    other = replace(problem, memory_bytes=np.array([4.0, np.inf]))
    for costs, is_over in ((problem, False), (limited, True), (other, True)):
        value = not_none(placer_of("hsdag").limited_memory(problem_of(costs))).value(everything)
        assert (value > 4.0 * 10.0) if is_over else np.isnan(value)
    assert placer_of("hsdag").limited_memory(problem_of(replace(problem, memory_bytes=np.full(2, np.inf)))) is None
    ranked = problem_of(limited, semantics=Semantics(order=Order.PRIORITY))
    value = not_none(placer_of("hsdag").limited_memory(ranked)).value(Plan(everything.placement, np.arange(4)))
    assert value > 4.0 * 10.0


def test_a_repaired_plan_whose_order_takes_too_much_memory_has_none() -> None:
    """In topological order, the result of op 1 is read before that of op 5 is made; a late op 3 keeps it."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 4), (4, 5), (5, 6)]
    sizes: dict[str, Any] = {"output_bytes": [0, 2, 0, 0, 0, 2, 0], "memory_bytes": [3.0]}
    links: dict[str, Any] = {"link_latency_s": 1.0, "link_bandwidth_bytes_per_s": 1.0}
    problem = problem_of(ScheduleProblem.from_arrays(np.ones((7, 1)), edges, **sizes, **links))
    home, evaluator = np.zeros(7, dtype=np.int64), ScheduleEvaluator.of(problem)
    plans = [Plan(home, np.array(ranks)) for ranks in ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 5, 3, 4, 6])]
    assert [score.failure is None for score in evaluator.evaluate(plans)] == [True, False]
    assert not_none(placer_of("hsdag").limited_memory(problem)).repaired(plans) == [plans[0], Plan(home)]


class Dear(Evaluator):
    """Simulated values that count as measured."""

    def __init__(self, inner: ScheduleEvaluator) -> None:
        self._inner = inner

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        return self._inner.evaluate(plans)


@pytest.mark.parametrize("is_cheap", [True, False])
def test_some_draws_that_exceed_a_memory_are_repaired_where_plans_are_simulated(is_cheap: bool) -> None:
    """Each of eight devices has room for five ops of forty, which blind draws meet once in 70,000 times."""
    problem = replace(row_of([[1.0] * 8] * 40), weight_bytes=np.full(40, 1e9), memory_bytes=np.full(8, 5.5e9))
    simulated = ScheduleEvaluator.of(problem_of(problem))
    evaluator = simulated if is_cheap else Dear(simulated)
    placer = placer_of("gdp", sees="false", **FEW_UPDATES, **NO_LEARNING)
    result = placer.search(problem_of(problem), evaluator, Limits(seed=1))
    assert (result.plan is not None) is is_cheap
    if is_cheap:
        assert np.bincount(not_none(result.plan).placement).tolist() == [5] * 8
