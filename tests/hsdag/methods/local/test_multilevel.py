"""Multilevel search: groups of two units each, which are searched first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import topological_order
from hsdag.ir.graph.partition import Partition
from hsdag.methods.incumbent import Limits
from hsdag.methods.local.multilevel import contracted, heavy_edges
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.local.test_chains import layered


@given(st.integers(0, 10**6), st.integers(2, 40))
def test_groups_are_pairs_joined_by_an_edge_and_form_no_cycle(seed: int, num_ops: int) -> None:
    problem, rng = layered(num_ops, seed), np.random.default_rng(seed)
    group = contracted(problem, rng.permutation(len(problem.edge_src)))
    sets = Partition.from_labels(group)
    topological_order(sets.num_groups, *sets.quotient_edges(problem.edge_src, problem.edge_dst))
    pairs = set(zip(problem.edge_src.tolist(), problem.edge_dst.tolist(), strict=True))
    for members in map(sets.members.of, range(sets.num_groups)):
        assert len(members) == 1 or tuple(members.tolist()) in pairs


def test_the_heaviest_edges_whose_ends_need_each_other_and_share_a_device_are_contracted() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)]
    sizes = np.array([1.0, 2.0, 3.0, 9.0, 1.0])
    problem = ScheduleProblem.from_arrays(np.ones((5, 2)), edges, edge_bytes=sizes, link_bandwidth_bytes_per_s=1.0)
    heaviest = heavy_edges(problem)
    assert heaviest.tolist() == [3, 2, 1, 0, 4]  # 0 to 3 is the heaviest, but has a path beside it
    assert contracted(problem, heaviest).tolist() == [0, 0, 2, 2, 4]
    assert contracted(problem, np.array([1, 4, 2, 0, 3])).tolist() == [0, 1, 1, 3, 3]
    time_s = np.ones((5, 2))
    time_s[2, 0] = time_s[3, 1] = np.nan
    assert contracted(replace(problem, time_s=time_s), heaviest).tolist() == [0, 1, 1, 3, 3]


def test_groups_have_half_of_the_evaluations_and_their_answer_is_one_of_units() -> None:
    units = problem_of(layered(600, num_devices=4))
    evaluator = ScheduleEvaluator.of(units)
    start = make_placer("heft").search(units, evaluator)
    recorder = RecordingEvaluator(evaluator, Budget(evaluations=60_000))
    result = make_placer("multilevel").search(units, recorder, Limits(num_workers=1))
    assert result.plan is not None
    assert evaluator.evaluate([result.plan])[0].value == result.score < 0.98 * start.score
