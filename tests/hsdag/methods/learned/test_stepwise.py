"""Policies that see what devices do with the units that are placed: the schedule that they keep, and its memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.base.errors import OptionError
from hsdag.methods.learned.decoding import END_LATER, FEATURES, SEEN_PACE, START_LATER
from hsdag.methods.learned.placeto import PlacetoConfig
from hsdag.methods.learned.policy import Exploring
from hsdag.methods.lists.schedule import list_schedule
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.runtime.problem.units import problem_of
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.learned.policies import generator
from tests.hsdag.methods.learned.test_device_policies import BY_UNIT, policy_of

SURE = 1e4


@BY_UNIT
@pytest.mark.parametrize("by_start", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_policy_that_sees_early_starts_or_ends_alone_is_the_list_schedule(
    method: str, by_start: bool, seed: int
) -> None:
    """Of each of several plans that grow together; a tie in starts is broken by ends, and no two ends are equal."""
    problem = random_problem(seed, 14, 3)
    unequal = np.random.default_rng(seed).uniform(0.99, 1.01, problem.time_s.shape)
    problem = replace(problem, time_s=problem.time_s * unequal)
    policy = policy_of(problem, method, trained=False)
    first, second = (START_LATER, END_LATER) if by_start else (END_LATER, START_LATER)
    with torch.no_grad():
        seen = policy.network.get_parameter("seeing.seen")
        seen[first], seen[second] = -SURE / SEEN_PACE, -1e-3 * SURE / SEEN_PACE
    tables = tables_of(problem_of(problem).known_costs)
    expected = list_schedule(tables, levels_of(tables).upward_s, by_start=by_start)
    for rollout in policy.draw(3, Exploring(heat=1e-6), generator(seed)):
        assert np.array_equal(rollout.plan.placement, expected.device)


@BY_UNIT
@pytest.mark.parametrize("seen", ["way to the end by the op's consumers", "share of the consumers' other inputs"])
def test_a_policy_can_see_where_a_consumer_will_find_its_other_input(method: str, seen: str) -> None:
    """Ops 0 and 1 feed 2, over a slow link; alone each would take a device of its own."""
    problem = ScheduleProblem.from_arrays(
        [[1.0, 1.0], [0.9, 0.9], [1.0, 1.0]], [(0, 2), (1, 2)], output_bytes=[5.0, 5.0, 0.0],
        link_bandwidth_bytes_per_s=1.0,
    )  # fmt: skip
    policy = policy_of(problem, method, trained=False)
    feature = next(i for i, name in enumerate(FEATURES) if name.startswith(seen))
    weights, homes = policy.network.get_parameter("seeing.seen"), list[set[int]]()
    for at, weight in ((END_LATER, -SURE), (feature, SURE if seen.startswith("share") else -SURE)):
        with torch.no_grad():
            weights.zero_()
            weights[at] = weight / SEEN_PACE
        (rollout,) = policy.draw(1, Exploring(heat=1e-6), generator())
        homes.append(set(rollout.plan.placement[:2].tolist()))
    assert [len(each) for each in homes] == [2, 1]


@BY_UNIT
def test_a_device_without_room_is_not_chosen_while_another_has_room(method: str) -> None:
    problem = random_problem(3, 14, 2)
    whole = replace(problem, time_s=np.nan_to_num(problem.time_s, nan=4.0), output_bytes=np.zeros(14))
    limited = replace(whole, weight_bytes=np.ones(14), memory_bytes=np.array([4.0, 100.0]))
    for rollout in policy_of(limited, method).draw(8, Exploring(share=0.5), generator()):
        assert (rollout.plan.placement == 0).sum() <= 4


@BY_UNIT
def test_units_run_in_the_order_in_which_they_are_placed_the_most_urgent_first(method: str) -> None:
    problem = random_problem(3, 14, 3)
    level_s = levels_of(tables_of(problem_of(problem).known_costs)).upward_s
    (rollout,) = policy_of(problem, method).draw(1, Exploring(), generator())
    assert rollout.plan.priority is not None
    assert (np.diff(level_s[np.argsort(rollout.plan.priority)]) <= 0).all()
    assert policy_of(problem, method, sees="false").draw(1, Exploring(), generator())[0].plan.priority is None


def test_a_policy_cannot_see_the_schedule_of_merged_groups() -> None:
    with pytest.raises(OptionError, match="option groups needs sees=false"):
        PlacetoConfig(groups=4)
