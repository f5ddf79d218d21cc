"""List scheduling by learned rules: what a rule can say, what it may not do, and that learning pays."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsdag.base.errors import FileFormatError, OptionError
from hsdag.commands.sources import find_family
from hsdag.commands.train.rules import first_rule
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.lists.rules import (
    DEVICE_FEATURES,
    MOMENT_FEATURES,
    MOST_ROUNDS,
    NUM_WEIGHTS,
    STEPS_AT_ONCE,
    WEIGHTS,
    RuleScheduler,
    RulesOptions,
    RulesPlacer,
    read_rules,
)
from hsdag.methods.lists.schedulers import HeftPlacer
from hsdag.methods.policy_file import SHIPPED, shipped_policy, write_policy
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import OP_FEATURES, WAY_TO_END, tables_of
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.searches import not_none


def rule(of_op: dict[str, float] | None = None, memory: float = 1.0, **of_device: float) -> FloatArray:
    """Weights of the features that begin with the given words."""
    weights = np.zeros(NUM_WEIGHTS)
    weights[WAY_TO_END] = 30.0
    for words, value in (of_op or {}).items():
        names = [*OP_FEATURES, *MOMENT_FEATURES]
        weights[next(i for i, name in enumerate(names) if name.startswith(words))] = value
    for words, value in of_device.items():
        at = next(i for i, name in enumerate(DEVICE_FEATURES) if name.startswith(words.replace("_", " ")))
        weights[len(OP_FEATURES) + len(MOMENT_FEATURES) + at] = value
    weights[-1] = memory
    return weights


def scheduler_of(problem: ScheduleProblem) -> RuleScheduler:
    return RuleScheduler(tables_of(problem))


@pytest.mark.parametrize("seed", range(8))
def test_the_rule_of_early_ends_is_heft(seed: int) -> None:
    links: dict[str, Any] = {"link_latency_s": 0.0, "link_bandwidth_bytes_per_s": 2.0}
    problem = random_problem(seed, 40, 3, 0.1, real=True, lacks=0.0, op_overhead_s=0.01, **links)
    mine, heft = scheduler_of(problem).schedule(rule(end=-1.0)), HeftPlacer().schedule(problem)
    assert np.array_equal(mine.sequence, heft.sequence)
    assert np.array_equal(mine.device, heft.device)
    assert np.allclose(mine.start_s, heft.start_s, rtol=1e-12)


def test_an_op_may_wait_for_a_device_while_another_is_idle() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, 9.0], [1.0, 9.0], [1.0, 9.0]], [])
    scheduler = scheduler_of(problem)
    assert scheduler.schedule(rule(start=-1.0)).device.tolist() == [0, 1, 0]
    waiting = scheduler.schedule(rule(time_of_the_op=-1.0))
    assert waiting.device.tolist() == [0, 0, 0]
    assert waiting.end_s.max() == 3.0


def test_a_rule_may_take_the_op_that_starts_first_for_the_one_with_the_longest_way() -> None:
    long = ScheduleProblem.from_arrays([[1.0], [1.0], [5.0]], [(0, 2)])
    by_way = scheduler_of(long).schedule(rule())
    by_time = scheduler_of(long).schedule(rule({"end on the second": 0.0, "earliest end": -100.0}))
    assert by_way.sequence.tolist() == [0, 2, 1]
    assert by_time.sequence.tolist() == [0, 1, 2]


def test_an_op_goes_where_its_consumer_will_find_its_other_input() -> None:
    """Ops 0 and 1 feed 2, over a slow link; alone each would take a device of its own."""
    join = ScheduleProblem.from_arrays(
        [[1.0, 1.0], [0.9, 0.9], [1.0, 1.0]], [(0, 2), (1, 2)], output_bytes=[5.0, 5.0, 0.0],
        link_bandwidth_bytes_per_s=1.0,
    )  # fmt: skip
    by_end = scheduler_of(join).schedule(rule(end=-1.0))
    by_way = scheduler_of(join).schedule(rule(way_to_the_end_by_the_op=-1.0))
    assert (len(set(by_end.device[:2])), by_end.end_s.max()) == (2, 6.9)
    assert (len(set(by_way.device.tolist())), by_way.end_s.max()) == (1, 2.9)


def test_rules_keep_to_the_memory_that_they_are_given() -> None:
    problem = ScheduleProblem.from_arrays(
        [[1.0, 9.0]] * 4, [], weight_bytes=np.full(4, 10.0), memory_bytes=np.array([25.0, 1e3])
    )
    scheduler = scheduler_of(problem)
    for share, count in ((1.0, 2), (0.5, 1)):
        device = scheduler.schedule(rule(time_of_the_op=-1.0, memory=share)).device
        assert (device == 0).sum() == count
    full = ScheduleProblem.from_arrays([[1.0, 1.0]] * 4, [], weight_bytes=np.full(4, 10.0), memory_bytes=[1.0, 2.0])
    assert (scheduler_of(full).schedule(rule(end=-1.0)).device == 1).sum() > 0


def test_options_out_of_range_are_refused() -> None:
    assert RulesOptions(rounds=1, spread=0.0).rounds == 1
    for wrong in ({"rounds": 0}, {"spread": -0.1}, {"spread": np.inf}):
        with pytest.raises(OptionError, match="rounds of at least 1 and a finite spread"):
            RulesOptions(**wrong)


@pytest.mark.parametrize(
    ("num_ops", "memory", "units"), [(2, np.inf, None), (400, np.inf, 800), (400, 1e9, 3 * 800)]
)  # fmt: skip
def test_rounds_are_those_of_about_a_second_and_not_too_many(num_ops: int, memory: float, units: int | None) -> None:
    """By units on devices that schedules look at, three times as many where memory has a limit."""
    num = len(read_rules(Path(SHIPPED)))
    problem = problem_of(ScheduleProblem.from_arrays(np.ones((num_ops, 2)), [], memory_bytes=memory))
    proposals = itertools.islice(RulesPlacer().proposals(problem, 0), 2 * MOST_ROUNDS * num)
    assert sum(1 for _ in proposals) == num * (MOST_ROUNDS if units is None else STEPS_AT_ONCE // (num * units))


def test_what_holds_no_rules_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    write_policy(path, {WEIGHTS: np.zeros((2, 3))}, {"method": "rules"})
    with pytest.raises(FileFormatError, match=f"does not hold rules of {NUM_WEIGHTS} weights"):
        RulesPlacer(RulesOptions(initial=str(path)))
    write_policy(path, {WEIGHTS: np.zeros((2, NUM_WEIGHTS))}, {"method": "doppler"})
    with pytest.raises(FileFormatError, match="is a policy of method 'doppler', not of 'rules'"):
        RulesPlacer(RulesOptions(initial=str(path)))


@pytest.mark.slow
def test_what_was_learned_of_the_order_and_in_all_pays_on_problems_not_seen() -> None:
    """Over the rule that training begins with, and over the same rules with its order."""
    assert shipped_policy("rules").stat().st_size < 5e6
    family, values = find_family("random-wired,transformer,chain,nmt,llama"), list[list[float]]()
    rules = read_rules(Path(SHIPPED))
    first, of_order = np.tile(first_rule(), (len(rules), 1)), slice(len(OP_FEATURES) + len(MOMENT_FEATURES))
    without_order = rules.copy()
    without_order[:, of_order] = first[:, of_order]
    for number in range(3_000_000, 3_000_015):
        costs = not_none(problem_of(family.problem(number)).costs)
        scheduler = RuleScheduler(tables_of(costs))
        plans = [[scheduler.schedule(each).plan for each in weights] for weights in (rules, without_order, first[:1])]
        values.append(
            [min(simulate(costs, p.placement, priority=p.priority).makespan_s for p in each) for each in plans]
        )
    learned, unordered, begun = np.exp(np.log(values).mean(axis=0))
    assert unordered > 1.003 * learned
    assert begun > 1.015 * learned
