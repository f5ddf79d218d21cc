"""DOPPLER with messages in every step: they tell what is placed by then, in draws and in gradients alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hsdag.evaluators.base import SearchStopped
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.learning.decoding import Rules
from hsdag.learning.decoding_kernel import FEATURES
from hsdag.learning.doppler import policy as doppler_policy
from hsdag.learning.doppler.config import Beginning, DopplerConfig
from hsdag.learning.doppler.network import DualNetwork, OwnScores, needed_bytes
from hsdag.learning.doppler.policy import DualPolicy
from hsdag.learning.doppler.states import STATE_FEATURES, States
from hsdag.learning.inputs import inputs_of
from hsdag.placers.incumbent import Limits
from hsdag.placers.learned.doppler import DopplerPlacer
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.tables import lengths_of, tables_of
from hsdag.runtime.problems.units import problem_of
from tests.hsdag.learning.doppler.test_dual_policy import PLAIN, draw_last_layers, generator, whole
from tests.hsdag.learning.hsdag.test_learning_placer import Recorder, Store
from tests.hsdag.learning.test_device_policies import search
from tests.hsdag.placers.exact.exact_reference import random_problem

MEAN = Rules(mean_of_seen=True)


@pytest.fixture(scope="module")
def problem() -> ScheduleProblem:
    return whole(random_problem(3, 10, 3))


def policy_of(
    problem: ScheduleProblem, rules: Rules = MEAN, *, is_by_step: bool = True, has_own: bool = False
) -> DualPolicy:
    """A small policy whose last layers, and scores of single ops, are drawn too."""
    inputs = inputs_of(problem)
    network = DualNetwork(
        inputs.x.shape[1] + is_by_step * len(STATE_FEATURES), len(FEATURES), 8, 2, "both-ways", generator(1),
        is_mean=rules.mean_of_seen, is_direct=True, logit_range=8.0,
    )  # fmt: skip
    draw_last_layers(network)
    if not has_own:
        return DualPolicy(network, inputs, rules, is_by_step=is_by_step)
    own = OwnScores(network, problem.num_ops, problem.num_devices)
    with torch.no_grad():
        for i, each in enumerate((own.select, own.place)):
            torch.nn.init.normal_(each, std=3e-3, generator=generator(i))
    return DualPolicy(own, inputs, rules, is_by_step=is_by_step)


@pytest.mark.parametrize(
    ("rules", "rows"),
    [(MEAN, 2**13), (Rules(), 2**13), (Rules(by_path=True), 2**13), (Rules(by_start=True), 2**13), (MEAN, 40)],
)
def test_the_network_gives_decisions_the_probability_they_were_drawn_with(
    problem: ScheduleProblem, rules: Rules, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doppler_policy, "ROWS", rows)
    policy = policy_of(problem, rules, has_own=rules == MEAN)
    judged = policy.judge(policy.draw(5, PLAIN, generator()))
    np.testing.assert_allclose(judged.log_p.detach(), judged.drawn, atol=1e-4)


def test_a_state_is_what_is_placed_before_a_step(problem: ScheduleProblem) -> None:
    """Against a loop over the decisions before it; a policy that drew no more knows the same."""
    tables = tables_of(problem)
    found = policy_of(problem).draw(1, PLAIN, generator())[0].record
    found = found._replace(**{name: getattr(found, name)[None] for name in found._fields})
    length_s, (order,), (home,) = lengths_of(tables)[0], found.order, found.home
    expected = np.zeros((problem.num_ops + 1, problem.num_ops, len(STATE_FEATURES)))
    start, end, work, last = np.zeros(10), np.zeros(10), np.zeros(3), np.zeros(3)
    for step, state in enumerate(expected):
        placed = order[:step].tolist()
        for v in range(problem.num_ops):
            if v in placed:
                state[v] = [1, 0, start[v], end[v], work[home[placed.index(v)]], last[home[placed.index(v)]]]
            else:
                state[v, 1] = all(u in placed for u in problem.edge_src[problem.edge_dst == v])
        if step < problem.num_ops:
            v, d = order[step], home[step]
            took = tables.time_s[v, d] / length_s
            start[v] = found.features[0, step, d, FEATURES.index("earliest start of the op")]
            end[v], work[d] = start[v] + took, work[d] + took
            last[d] = max(last[d], end[v])
    steps = np.arange(problem.num_ops + 1)
    of_all = States(tables, found, problem.num_ops).at(np.zeros_like(steps), steps)
    np.testing.assert_allclose(of_all, expected, atol=1e-6)
    so_far = found._replace(ready=np.where(found.ready <= 4, found.ready, problem.num_ops))
    of_some = States(tables, so_far, 4).at(np.zeros(1, np.int64), np.array([4]))
    np.testing.assert_array_equal(of_some[0], of_all[4])


@pytest.mark.parametrize("is_by_step", [False, True])
def test_the_selection_of_an_op_knows_where_others_are_placed_if_messages_pass_in_every_step(
    problem: ScheduleProblem, is_by_step: bool
) -> None:
    policy = policy_of(problem, is_by_step=is_by_step)
    order, homes = np.stack([problem.topological_order] * 2), np.stack([np.zeros(10, np.int64), np.arange(10) % 3])
    decoded = policy._decoded(MEAN, np.zeros(2, np.uint64), (order, homes))
    of_ops = policy.judge(decoded).log_p.detach().reshape(2, 10, 2)[:, :, 0]
    differ = (of_ops[0] - of_ops[1]).abs() > 1e-3
    assert not differ[:2].any()  # the second op of the order is selected after one on device 0 in both
    assert bool(differ[2:].any()) == is_by_step


@pytest.mark.parametrize(
    "part", ["encoder.input", "encoder.rounds.0", "encoder.rounds.1", "features", "select", "seen"]
)
def test_the_gradient_of_every_part_is_its_finite_difference(problem: ScheduleProblem, part: str) -> None:
    policy = policy_of(problem)
    rollouts = policy.draw(2, PLAIN, generator())
    weights = [p for name, p in policy.network.named_parameters() if name.startswith(part)]
    gradients = torch.autograd.grad(policy.judge(rollouts).log_p.sum(), weights)
    length = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    assert length > 1e-3
    ends = []
    with torch.no_grad():
        for sign in (1.0, -2.0):
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.add_(gradient / length, alpha=sign * 3e-3)
            ends.append(float(policy.judge(rollouts).log_p.double().sum()))
    assert (ends[0] - ends[1]) / 6e-3 == pytest.approx(float(length), rel=0.05)


def test_the_gradient_is_the_same_however_many_passes_it_is_taken_in(
    problem: ScheduleProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(problem)
    rollouts, found = policy.draw(2, PLAIN, generator()), list[tuple[torch.Tensor, ...]]()
    for rows in (2**13, 70):
        monkeypatch.setattr(doppler_policy, "ROWS", rows)
        judged = policy.judge(rollouts)
        loss = judged.log_p.sum() + judged.entropy.sum()
        found.append(torch.autograd.grad(loss, list(policy.network.parameters())))
    for one, many in zip(*found, strict=True):
        torch.testing.assert_close(one, many, rtol=1e-3, atol=1e-4)


def test_a_plan_is_replayed_as_it_is(problem: ScheduleProblem) -> None:
    plan = Plan(np.arange(10) % 3)
    assert np.array_equal(policy_of(problem).replay([plan], generator())[0].plan.placement, plan.placement)


def placer() -> DopplerPlacer:
    return DopplerPlacer(
        DopplerConfig(
            messages_each_step=True, begins_as=Beginning.NOTHING, width=8, layers=1, updates=3, plans_per_update=3
        )
    )


def test_the_same_seed_gives_the_same_search_and_a_killed_one_resumes_as_if_it_had_not_been(
    problem: ScheduleProblem,
) -> None:
    asked = search(placer(), problem).asked
    assert search(placer(), problem).asked == asked
    store = Store()
    search(placer(), problem, len(asked) // 2, store)
    resumed = search(placer(), problem, store=store).asked
    assert 0 < len(resumed) < len(asked)
    assert resumed == asked[len(asked) - len(resumed) :]


def test_a_search_ends_between_the_steps_of_a_draw(problem: ScheduleProblem) -> None:
    class Ending(Recorder):
        left = 5

        def check(self) -> None:
            self.left -= 1
            if self.left == 0:
                raise SearchStopped

    recorder = Ending(ScheduleEvaluator(problem, problem_of(problem).semantics))
    placer().search(problem_of(problem), recorder, Limits(seed=1))
    assert recorder.left == 0
    assert len(recorder.asked) == problem.num_devices  # each device alone, and nothing drawn


@pytest.mark.parametrize("asked", [1, 5, 10])
def test_a_search_ends_between_the_passes_of_a_gradient(
    problem: ScheduleProblem, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four passes; what they hold is computed again on the way back."""
    monkeypatch.setattr(doppler_policy, "ROWS", 50)
    policy, left = policy_of(problem), iter(range(asked))
    rollouts = policy.draw(2, PLAIN, generator())

    def stop() -> None:
        if next(left, None) is None:
            raise SearchStopped

    def learn() -> None:
        for _ in range(2):
            policy.judge(rollouts).log_p.sum().backward()  # type: ignore[no-untyped-call]

    policy.check = stop
    with pytest.raises(SearchStopped):
        learn()


def test_memory_grows_as_the_problem_does_beyond_one_pass() -> None:
    config = DopplerConfig(messages_each_step=True)
    many = [needed_bytes(n, 2 * n, 4, config, 2**13) for n in (10_000, 20_000)]
    assert many[1] == pytest.approx(2 * many[0], rel=1e-6)
    assert needed_bytes(100, 200, 4, config, 2**13) < 0.3e9
