"""Chains over list schedules: the schedule is the one made by hand, and the value that of its plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.methods.local.chain import chain_for, shares_of
from hsdag.methods.local.sa import MOVES_OF_LISTS
from hsdag.methods.local.values import lists_of, schedule, scheduled
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.local.test_search_heuristics import random_problem


def by_hand(p: ScheduleProblem, pin: IntArray, rank: FloatArray) -> tuple[list[int], list[int]]:
    """Devices, and places in the order, of ops by rank, each on its pin or where it ends first."""
    device, end_s, place, free_s = [-1] * p.num_ops, [0.0] * p.num_ops, [0] * p.num_ops, [0.0] * p.num_devices
    for step in range(p.num_ops):
        reads = [[int(u) for u in p.edge_src[p.edge_dst == v]] for v in range(p.num_ops)]
        ready = [v for v in range(p.num_ops) if device[v] < 0 and all(device[u] >= 0 for u in reads[v])]
        v = min(ready, key=lambda op: (rank[op], op))
        ends = {}
        for d in range(p.num_devices):
            if not p.supported[v, d] or pin[v] not in (d, p.num_devices):
                continue
            at_s = free_s[d]
            for k in np.flatnonzero(p.edge_dst == v):
                u = int(p.edge_src[k])
                link_s = p.link_latency_s[device[u], d] + p.edge_bytes[k] / p.link_bandwidth_bytes_per_s[device[u], d]
                at_s = max(at_s, end_s[u] + (link_s if device[u] != d else 0.0))
            ends[d] = at_s + p.time_s[v, d] + p.op_overhead_s
        device[v] = min(ends, key=lambda d: (ends[d], d))
        end_s[v] = free_s[device[v]] = ends[device[v]]
        place[v] = step
    return device, place


@given(st.integers(0, 10**6))
def test_units_go_by_rank_each_to_its_pin_or_where_it_ends_first(seed: int) -> None:
    problem, rng = random_problem(seed), np.random.default_rng(seed)
    pin = np.where(rng.random(problem.num_ops) < 0.7, problem.num_devices, problem.supported.argmax(axis=1))
    rank = rng.permutation(problem.num_ops).astype(float)
    lists = lists_of(problem)
    schedule(lists, pin, rank)
    assert (lists.device.tolist(), lists.rank.tolist()) == by_hand(problem, pin, rank)


@given(st.integers(0, 10**6))
def test_the_value_of_a_chain_over_list_schedules_is_that_of_its_plan(seed: int) -> None:
    problem = random_problem(seed)
    units = problem_of(problem)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
    share = shares_of(units, MOVES_OF_LISTS, takes_order=True)
    if not share.any():
        return
    assert units.costs is not None
    chain = chain_for(units, share, seed, has_pins=True)
    values = scheduled(units, problem, units.units.partition.labels, takes_order=True)
    values = values._replace(lists=lists_of(units.costs))
    chain.device[:], chain.rank[:] = units.num_devices, np.arange(units.num_units)
    values.propose(chain, 0)
    chain.state["temperature"], chain.state["cooling"] = 0.1, 1.0
    for _ in range(4):
        values.propose(chain, 25)
        schedule(values.lists, chain.best_device, chain.best_rank)
        order = inverse_of(np.argsort(values.lists.rank, kind="stable"))
        assert evaluator.evaluate([Plan(values.lists.device, order)])[0].value == pytest.approx(chain.state["best"][0])
