"""Search the few ops that take nearly all of the time by themselves, and place all others to suit them.

Legend: U placement units, H heavy ones, E edges, D devices.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, IntArray, inverse_of
from hsdag.methods.anneal.values import lists_of, schedule
from hsdag.methods.anneal.windows import has_schedule
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.incumbent import GaveUp, Incumbent, Status
from hsdag.methods.registry import make_placer
from hsdag.methods.repeated.apart import considered, searched_apart
from hsdag.runtime.problem.bounds.simple import least_op_s
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import Simulation

WORK = 0.97
"""Share of the least time of all units that the heavy units, the fewest possible, take together."""
ROUNDING = 1e-9
"""Relative difference of times below which two units are either both heavy or both light."""
MOST_CHOICES = 250
"""Largest number of heavy units times devices that are searched by themselves; beyond it no exact solver helps."""
HELD = 0.1
"""Transfer time, as a share of a heavy unit's mean time, beyond which a light unit goes with the unit that it reads."""
WITHOUT = {"without": "repeated,coarse"}
"""Hyper-parameters of ``auto`` for heavy units: it leaves out methods that would look for blocks, or coarsen again."""
APART = 0.9
"""Share of the time and evaluations that the search of the heavy units may take."""
MOST_TRIED = 20
"""Number of plans of the heavy units that are tried for all units."""


@dataclass(frozen=True, eq=False)
class Coarse:
    """The problem of the heavy units.

    Attributes:
        heavy: Number of the heavy unit that each unit belongs to, -1 for a light one.
    """

    costs: ScheduleProblem
    heavy: IntArray  # [U]


class CoarsePlacer(Placer[NoOptions]):
    """Search of the heavy units by ``auto``; light units go where they end first, just before their readers.

    A light unit that reads a large result of the last heavy unit before it becomes a part of that unit. The data
    between two heavy units are those that pass through light ones. Gives up if heavy units are many, or nearly all.
    """

    name = "coarse"
    objectives = ("latency",)
    executions = (Execution.WORK_CONSERVING,)
    gives_order = True
    is_seeded = True

    def _search(self, incumbent: Incumbent) -> Status:
        if (coarse := coarse_of(incumbent.costs)) is None:
            raise GaveUp("no few ops take nearly all of the time")
        if incumbent.limits.known:
            incumbent.evaluate(incumbent.limits.known)
        part = problem_of(coarse.costs, incumbent.problem.objective, incumbent.problem.semantics)
        budget = APART * incumbent.left_s, APART * incumbent.evaluations_left
        runs, _ = searched_apart(incumbent, part, "auto", *budget, without=WITHOUT)
        for run in itertools.islice(runs, MOST_TRIED):
            considered(incumbent, *refined_schedule(incumbent.costs, coarse, run))
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        if problem.costs is None or not has_schedule(problem) or coarse_of(problem.costs) is None:
            return
        for method in ("sa", "rules", "beam"):
            make_placer(method, is_cheap=True).prepare(problem, takes_order=takes_order)


@lru_cache(maxsize=1)
def coarse_of(costs: ScheduleProblem) -> Coarse | None:
    """Return the coarse problem; None if it has more than MOST_CHOICES choices or more than half of the units."""
    least_s = least_op_s(costs)
    by_time = np.argsort(-least_s, kind="stable")
    last = by_time[np.searchsorted(np.cumsum(least_s[by_time]), WORK * least_s.sum())]
    num = int((least_s >= least_s[last] * (1 - ROUNDING)).sum())
    if num * costs.num_devices > MOST_CHOICES or num > costs.num_ops / 2:
        return None
    place = inverse_of(costs.topological_order)
    heavy = np.full(costs.num_ops, -1, dtype=np.int64)
    chosen = by_time[:num][np.argsort(place[by_time[:num]])]
    heavy[chosen] = np.arange(num)
    held_s = HELD * float(least_s[chosen].mean())
    sent = _merged(costs, heavy, _sent_bytes(costs, held_s))
    edges = np.array(sorted(sent), dtype=np.int64).reshape(-1, 2)
    time_s, weight_bytes = np.zeros((num, costs.num_devices)), np.zeros(num)
    part_of = heavy >= 0
    np.add.at(time_s, heavy[part_of], costs.time_s[part_of])
    np.add.at(weight_bytes, heavy[part_of], costs.weight_bytes[part_of])
    problem = ScheduleProblem.from_arrays(
        time_s,
        edges,
        device_names=costs.device_names,
        edge_bytes=np.array([sent[u, v] for u, v in edges.tolist()]),
        weight_bytes=weight_bytes,
        memory_bytes=costs.memory_bytes,
        link_latency_s=costs.link_latency_s,
        link_bandwidth_bytes_per_s=costs.link_bandwidth_bytes_per_s,
        op_overhead_s=costs.op_overhead_s,
        transfer_overhead_s=costs.transfer_overhead_s,
        launch_s=costs.launch_s,
        slowdown=costs.slowdown,
        name=f"{costs.name}, coarse",
    )
    return Coarse(problem, heavy)


def _sent_bytes(costs: ScheduleProblem, seconds: float) -> float:
    """Return the bytes that the mean link sends in ``seconds``."""
    off = ~np.eye(costs.num_devices, dtype=np.bool_)
    if not off.any():
        return np.inf
    s_per_byte = float((1.0 / costs.link_bandwidth_bytes_per_s[off]).mean())
    return max(seconds - float(costs.link_latency_s[off].mean()), 0.0) / max(s_per_byte, 1e-300)


def _merged(costs: ScheduleProblem, heavy: IntArray, least_bytes: float) -> dict[tuple[int, int], float]:
    """Return the bytes sent between heavy units, by pair of them.

    Args:
        heavy: Number of the heavy unit that each unit belongs to [U], which is set for light units that join one.
        least_bytes: Least bytes that make a light unit join the heavy unit that they come from.
    """
    edges_in = Csr.build(costs.num_ops, costs.edge_dst, np.arange(len(costs.edge_dst)))
    able = costs.supported[np.argsort(heavy, kind="stable")[np.count_nonzero(heavy < 0) :]]  # [H, D]
    reach: list[dict[int, float]] = [{} for _ in range(costs.num_ops)]  # [U] bytes that arrive from each heavy unit
    sent: dict[tuple[int, int], float] = {}
    for v in costs.topological_order.tolist():
        arriving: dict[int, float] = {}
        for edge in edges_in.of(v).tolist():
            u, size = int(costs.edge_src[edge]), float(costs.edge_bytes[edge])
            for unit, passed in ({int(heavy[u]): np.inf} if heavy[u] >= 0 else reach[u]).items():
                arriving[unit] = max(arriving.get(unit, 0.0), min(size, passed))
        last = max(arriving, default=-1)
        if heavy[v] < 0 and last >= 0 and arriving[last] >= least_bytes and (able[last] & costs.supported[v]).any():
            heavy[v] = last
            able[last] &= costs.supported[v]
        for unit, size in arriving.items() if heavy[v] >= 0 else ():
            if unit != heavy[v]:
                sent[unit, int(heavy[v])] = max(sent.get((unit, int(heavy[v])), 0.0), size)
        reach[v] = arriving
    return sent


def refined_schedule(costs: ScheduleProblem, coarse: Coarse, run: Simulation) -> tuple[IntArray, IntArray]:
    """Return devices [U] and ranks [U] of all units by a run of the heavy ones; light ones precede their readers."""
    is_light = coarse.heavy < 0
    pin = np.where(is_light, costs.num_devices, run.device[coarse.heavy])
    rank = np.where(is_light, np.inf, run.start_s[coarse.heavy])
    readers = Csr.build(costs.num_ops, costs.edge_src, costs.edge_dst)
    for v in costs.topological_order[::-1].tolist():
        rank[v] = min([rank[v], *rank[readers.of(v)].tolist()])
    lists = lists_of(costs)
    schedule(lists, pin, rank)
    return lists.device, lists.rank.astype(np.int64)
