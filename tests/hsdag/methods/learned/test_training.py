"""Training on small problems with known best plans: what is rewarded, resumed and refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.base.errors import OptionError, SearchError
from hsdag.methods.learned.buffer import Buffer
from hsdag.methods.learned.doppler.network import DopplerConfig
from hsdag.methods.learned.hsdag.network import HsdagConfig
from hsdag.methods.learned.hsdag.placer import GroupPolicy
from hsdag.methods.learned.learner import rate
from hsdag.methods.learned.options import Baseline, Reward
from hsdag.methods.learned.placeto import PlacetoPolicy
from hsdag.methods.learned.policy import Aim, Likelihood, Policy, Rollout
from hsdag.methods.learned.states import check_same, described
from hsdag.methods.learned.training import Trainer, draws_of
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import Evaluator, Score, SearchStopped
from tests.hsdag.methods.learned.hsdag.test_policy import chain, drawn, policy_for

SMALL = HsdagConfig(hidden=16, score_bias=0.0)
ONE, TWO, THREE = (Plan(np.array([d])) for d in range(3))


class Additive(Evaluator):
    """One second per unit on device 0, two on device 1; a placement that starts on device 2 fails."""

    def __init__(self) -> None:
        self.placements: list[list[int]] = []
        self.unit_s = 1.0

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        placements = [plan.placement for plan in plans]
        self.placements += [p.tolist() for p in placements]
        return [
            Score(failure="device 2 fails") if p[0] == 2 else Score(self.unit_s * float((1.0 + p).sum()))
            for p in placements
        ]


def trainer_for(
    config: HsdagConfig, num_devices: int = 2, num_units: int = 12
) -> tuple[Trainer, GroupPolicy, Additive]:
    problem, evaluator = chain(num_units, np.ones((num_units, num_devices), dtype=np.bool_)), Additive()
    policy = policy_for(problem, config)
    singles = problem.alone
    generator = torch.Generator().manual_seed(0)
    return Trainer("hsdag", policy, evaluator, config, generator, singles=singles), policy, evaluator


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (Reward.INVERSE, [4.0, 2.0]),
        (Reward.NEGATIVE, [-1.0, -2.0]),
        (Reward.SQUARE_ROOT, [-1.0, -math.sqrt(2.0)]),
        (Reward.LOG_RATIO, [0.0, -math.log(2.0)]),
    ],
)
@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_rewards_relative_to_the_best_single_device_have_no_unit(
    reward: Reward, expected: list[float], unit: float
) -> None:
    buffer = Buffer(replace(SMALL, reward=reward))
    buffer.add([ONE, TWO], [Score(0.25 * unit), Score(0.5 * unit)], single=True)
    buffer.add([THREE], [Score(0.125 * unit)])
    in_unit = unit if reward is Reward.INVERSE else 1.0
    assert buffer.rewards(np.array([0.25, 0.5]) * unit) == pytest.approx(np.array(expected) / in_unit)


def test_a_failure_counts_as_four_times_the_worst_value() -> None:
    buffer = Buffer(SMALL)
    assert buffer.rewards(np.array([np.nan])).tolist() == [0.0]  # of which nothing is known yet
    values = buffer.add([ONE, TWO], [Score(2.0), Score(failure="no")], single=True)
    assert buffer.rewards(values) == pytest.approx([0.0, -math.log(4)])
    free = Buffer(SMALL)
    assert free.rewards(free.add([ONE], [Score(0.0)])).tolist() == [0.0]


@pytest.mark.parametrize(("elites", "kept"), [(0, 1), (2, 2)])
def test_the_best_distinct_plans_are_kept_the_earlier_of_equal_ones_first(elites: int, kept: int) -> None:
    buffer = Buffer(replace(SMALL, elites=elites))
    assert buffer.elites == []
    failing, unseen = (Plan(np.array([d])) for d in (3, 4))
    scores = [Score(3.0), Score(1.0), Score(1.0), Score(1.0), Score(failure="no")]
    buffer.add([ONE, TWO, THREE, TWO, failing], scores)
    assert (len(buffer), failing in buffer, unseen in buffer) == (4, True, False)
    assert buffer._best == [(TWO, 1.0), (THREE, 1.0)][:kept]
    assert buffer.elites == buffer._best[:elites]


def test_rates_change_linearly_over_updates() -> None:
    trainer, _, _ = trainer_for(replace(SMALL, updates=4))
    for update, expected in ((0, 2.0), (1, 1.75), (4, 1.0), (8, 1.0)):
        trainer.updates.number = update
        assert rate(2.0, 1.0, trainer.progress) == expected


def test_the_weight_of_step_i_is_gamma_to_the_i_times_the_reward() -> None:
    trainer, policy, _ = trainer_for(replace(HsdagConfig.paper(), hidden=16, discount=0.9))
    rollout = drawn(policy)[0]
    trainer.buffer.add([rollout.plan], [Score(0.5)])
    steps = [replace(rollout, step=step) for step in (1, 2, 3)]
    assert trainer.advantages(np.full(3, 0.5), steps) == pytest.approx([1.8, 1.62, 1.458])


def test_imitation_raises_the_probability_of_what_is_imitated() -> None:
    trainer, policy, _ = trainer_for(SMALL)
    rollout = drawn(policy)[0]

    def likely() -> float:
        (again,) = policy.replay([rollout.plan], torch.Generator().manual_seed(0))
        return float(again.record.episode.log_p[again.record.episode.able.any(axis=1)].mean())

    before = likely()
    for _ in range(5):
        trainer.learner.step(trainer.policy, [([rollout], None)], 0.0, 1.0)
    assert likely() > before


@pytest.mark.parametrize(
    ("baseline", "reward", "batches"),
    [
        (Baseline.NONE, Reward.NEGATIVE, [([1.0, 3.0], [-1.0, -3.0]), ([2.0, 2.0], [-2.0, -2.0])]),
        (Baseline.RUNNING, Reward.NEGATIVE, [([1.0, 3.0], [1.0, -1.0]), ([4.0, 1.0], [-2.0, 1.0]), ([2.25], [0.0])]),
        (Baseline.BATCH, Reward.NEGATIVE, [([1.0, 2.0, 3.0], [math.sqrt(1.5), 0.0, -math.sqrt(1.5)])]),
        (Baseline.RANKS, Reward.NEGATIVE, [([1.0, 2.0, 3.0, 2.0], [math.sqrt(2), 0.0, -math.sqrt(2), 0.0])]),
        (Baseline.RANKS, Reward.LOG_RATIO, [([1.0, 2.0, 300.0, 2.0], [math.sqrt(2), 0.0, -math.sqrt(2), 0.0])]),
    ],
)
def test_a_baseline_is_subtracted_and_those_of_a_batch_give_unit_spread(
    baseline: Baseline, reward: Reward, batches: list[tuple[list[float], list[float]]]
) -> None:
    """The running one is the mean over all plans before, or of the first batch; ranks do not see how far off one is."""
    trainer, policy, _ = trainer_for(replace(SMALL, reward=reward, baseline=baseline))
    trainer.buffer.add([ONE], [Score(1.0)], single=True)
    for values, expected in batches:
        advantages = trainer.advantages(np.array(values), drawn(policy) * len(values))
        assert advantages == pytest.approx(expected, abs=1e-9)


def test_a_search_over_few_placements_ends_by_itself() -> None:
    trainer, _, evaluator = trainer_for(replace(SMALL, patience=3), num_units=2)
    trainer.run()
    assert trainer.buffer.elites[0][0].placement.tolist() == [0, 0]
    assert {tuple(p) for p in evaluator.placements} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_no_step_begins_that_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _, evaluator = trainer_for(replace(SMALL, updates=1, epochs=5))
    spent = [0.0]
    monkeypatch.setattr(Additive, "progress", property(lambda _: sum(spent)))
    monkeypatch.setattr(trainer.learner, "step", lambda *_: spent.append(0.4))
    trainer.run()
    assert evaluator.progress == pytest.approx(0.8)


def test_recalibrated_costs_have_elites_worst_and_reference_scored_anew() -> None:
    trainer, _, evaluator = trainer_for(replace(SMALL, updates=2))
    trainer.run()
    before = [value for _, value in trainer.buffer.elites]
    references = trainer.buffer.rewards(np.array([1.0, 2.0]))
    evaluator.unit_s, evaluator.version = 10.0, evaluator.version + 1
    trainer._evaluate([trainer.buffer.elites[0][0]])
    assert [value for _, value in trainer.buffer.elites] == pytest.approx([10 * value for value in before])
    assert trainer.buffer.rewards(np.array([10.0, 20.0])) == pytest.approx(references)


def test_of_many_plans_the_best_and_the_worst_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(SMALL, updates=1, plans_per_update=10, kept_per_update=4, elites=0, resample_tries=1)
    trainer, _, evaluator = trainer_for(options)
    learned: list[tuple[list[float], list[float]]] = []

    def note(_: Policy, groups: Sequence[tuple[Sequence[Rollout], torch.Tensor | None]], *__: float) -> None:
        for rollouts, advantages in groups:
            assert advantages is not None
            learned.append(([float(r.plan.placement.sum()) for r in rollouts], advantages.tolist()))

    monkeypatch.setattr(trainer.learner, "step", note)
    trainer.run()
    (seconds, weights), values = learned[0], sorted(sum(p) for p in evaluator.placements[2:12])
    assert len(learned) == options.epochs
    assert sorted(seconds) == values[:2] + values[-2:]
    assert np.corrcoef(seconds, weights)[0, 1] < -0.9


@pytest.mark.parametrize(("greedy_every", "counts"), [(0, [10, 10, 10, 10]), (3, [10, 1, 10, 10, 10, 1])])
def test_the_most_probable_plan_is_asked_for_now_and_then(greedy_every: int, counts: list[int]) -> None:
    config = replace(SMALL, plans_per_update=10, greedy_every=greedy_every, updates=4, epochs=1)
    trainer, _, evaluator = trainer_for(config, num_units=40)
    trainer.begin()
    assert evaluator.placements == [[0] * 40, [1] * 40]
    trainer.run()
    assert len(evaluator.placements) == 2 + 2 + sum(counts)


def test_plans_that_repeat_others_are_drawn_again_as_often_as_that_may_be_tried() -> None:
    trainer, _, _ = trainer_for(replace(SMALL, plans_per_update=4, resample_tries=50), num_units=3)
    trainer.begin()
    found = [rollout.plan for rollout in draws_of(trainer)]
    assert len(found) == len(set(found)) == 4
    assert not any(plan in trainer.buffer for plan in found)
    trainer.options = replace(trainer.options, plans_per_update=12, resample_tries=2)
    assert len(draws_of(trainer)) == 12


def loss_of(ratio: float, advantage: float, *, entropy: float = 0.0, bonus: float = 0.0) -> float:
    """The loss of one decision whose probability has changed by a ratio since it was drawn."""

    class Decided(PlacetoPolicy):
        def __init__(self) -> None: ...

        def likelihood(self, rollouts: Sequence[Rollout]) -> Likelihood:  # noqa: ARG002
            log_p = torch.tensor([math.log(ratio) - 0.7])
            return Likelihood(log_p, torch.tensor([-0.7]), torch.zeros(1, dtype=torch.int64), torch.tensor([entropy]))

    return Decided().loss([], torch.tensor([advantage]), Aim(0.2, bonus, 1.0)).item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, -1.2), (0.5, 1.0, -0.5), (1.5, -1.0, 1.5), (0.5, -1.0, 0.8), (1.1, 2.0, -2.2), (5.0, -1.0, 3.0)],
)
def test_the_clipped_objective_is_the_lesser_gain_plus_entropy(ratio: float, advantage: float, expected: float) -> None:
    """Schulman et al. 2017, eq. 7, but for ratios beyond 3, whose loss is bounded."""
    assert loss_of(ratio, advantage) == pytest.approx(expected)
    assert loss_of(ratio, advantage, entropy=2.0, bonus=0.1) == pytest.approx(expected - 0.2)


def test_a_state_of_another_method_other_options_or_another_version_is_refused() -> None:
    wanted = described("doppler", DopplerConfig().as_dict())
    check_same(wanted, wanted | {"update": 3})
    for changes, answer in (
        ({"method": "gdp"}, "is of method 'gdp', not 'doppler'"),
        ({"config": DopplerConfig(layers=5).as_dict()}, r"other options of doppler \(layers\)"),
        ({"states": 1}, "is that of another version of hsdag"),
    ):
        with pytest.raises(SearchError, match=answer):
            check_same(wanted, wanted | changes)


def test_something_has_to_be_learned() -> None:
    with pytest.raises(OptionError, match="one of learns_order and learns_devices must be true"):
        DopplerConfig(learns_order=False, learns_devices=False)


def test_entropy_counts_as_many_times_more_as_a_trainer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, policy, _ = trainer_for(SMALL)
    aims, loss = list[Aim](), policy.loss

    def noted(rollouts: Sequence[Rollout], advantages: torch.Tensor | None, aim: Aim) -> torch.Tensor:
        aims.append(aim)
        return loss(rollouts, advantages, aim)

    monkeypatch.setattr(policy, "loss", noted)
    trainer.update()
    trainer.spread = 3.0
    trainer.update()
    assert aims[-1].entropy == 3.0 * aims[0].entropy > 0.0


def test_policies_that_follow_stagnant_ones_spread_more_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device: no plan is better than the first, so every policy stagnates."""
    problem, spreads, begin = chain(3, np.ones((3, 1), dtype=np.bool_)), list[float](), Trainer.begin

    def noted(trainer: Trainer) -> None:
        spreads.append(trainer.spread)
        begin(trainer)
        if len(spreads) == 5:
            raise SearchStopped

    monkeypatch.setattr(Trainer, "begin", noted)
    changes = {"hidden": "8", "stagnation": "2", "patience": "0", "plans_per_update": "2"}
    make_placer("hsdag", changes=changes).search(problem, Additive())
    assert spreads == [1.0, 3.0, 1.0, 3.0, 1.0]
