"""Brute force over all placements and orders, and random problems to try it on; shares no code with the product."""

from __future__ import annotations

import itertools
from typing import Any

import numba
import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


def random_problem(
    seed: int,
    num_ops: int,
    num_devices: int = 2,
    density: float = 0.35,
    *,
    real: bool = False,
    shuffled: bool = False,
    lacks: float = 0.2,
    **tables: Any,
) -> ScheduleProblem:
    """Small whole numbers, or ``real`` ones; a share that one device ``lacks``; edges of one result that differ in
    size; overheads. Indices are topological unless ``shuffled``; ``tables`` take the place of what is drawn."""
    rng = np.random.default_rng(seed)
    amounts = rng.uniform if real else rng.integers
    time_s = amounts(0, 9, (num_ops, num_devices)).astype(float)
    if num_devices > 1:
        bare = rng.random(num_ops) < lacks
        time_s[bare, rng.integers(0, num_devices, int(bare.sum()))] = np.nan
    edges = [(u, v) for v in range(num_ops) for u in range(v) if rng.random() < density]
    drawn = {
        "output_bytes": amounts(0, 6, num_ops),
        "edge_bytes": amounts(0, 6, len(edges)) if seed % 2 else None,
        "link_latency_s": amounts(0, 3, (num_devices, num_devices)),
        "link_bandwidth_bytes_per_s": amounts(1, 4, (num_devices, num_devices)),
        "op_overhead_s": float(seed % 3 == 0),
    }
    label = rng.permutation(num_ops) if shuffled else np.arange(num_ops)
    return ScheduleProblem.from_arrays(time_s, [(label[u], label[v]) for u, v in edges], **(drawn | tables))


class BruteForce:
    """The shortest schedule of all placements and of all orders in which ops can be appended to their devices."""

    def __init__(self, problem: ScheduleProblem) -> None:
        n, every = problem.num_ops, every_placement(problem)
        sizes = np.full((n, n), -1.0)  # bytes that an op reads of another; below nothing for none
        for u, v, size in zip(problem.edge_src, problem.edge_dst, problem.edge_bytes, strict=True):
            sizes[u, v] = max(float(size), sizes[u, v])
        self._placements = every[problem.supported[np.arange(n), every].all(axis=1)]
        self._problem, self._sizes = problem, sizes

    def makespan_s(self) -> float:
        """The optimum."""
        p = self._problem
        tables = (p.time_s, self._sizes, p.link_latency_s, p.link_bandwidth_bytes_per_s, p.op_overhead_s)
        return float(_best_of_all_s(self._placements, *tables))


@numba.njit(nogil=True)
def _best_of_all_s(
    placements: IntArray,
    time_s: FloatArray,
    sizes: FloatArray,
    latency_s: FloatArray,
    bytes_per_s: FloatArray,
    overhead_s: float,
) -> float:
    num, num_devices = time_s.shape
    best_s = np.inf
    for b in range(len(placements)):
        device = placements[b]
        run_s, sent_s = np.empty(num), np.full((num, num), -1.0)  # [reader, result]; below nothing where it reads none
        for v in range(num):
            run_s[v] = time_s[v, device[v]]
            for u in range(num):
                if sizes[u, v] >= 0.0:
                    sent_s[v, u] = 0.0
                if sizes[u, v] >= 0.0 and device[u] != device[v]:
                    largest = 0.0  # of all edges from u to that device
                    for w in range(num):
                        if device[w] == device[v]:
                            largest = max(largest, sizes[u, w])
                    link = device[u], device[v]
                    sent_s[v, u] = latency_s[link] + largest / bytes_per_s[link]
        end_s, free_s = np.full(num, -1.0), np.zeros(num_devices)
        best_s = _append(device, run_s, sent_s, overhead_s, end_s, free_s, 0.0, 0.0, 0, best_s)
    return best_s


@numba.njit(nogil=True)
def _append(
    device: IntArray,
    run_s: FloatArray,
    sent_s: FloatArray,
    overhead_s: float,
    end_s: FloatArray,
    free_s: FloatArray,
    last_s: float,
    latest_s: float,
    num_done: int,
    best_s: float,
) -> float:
    """Append every op that can be next, in order of starts: ``latest_s`` is the last start, ``last_s`` the last end.

    ``end_s`` is below nothing for ops that wait. Returns the shortest schedule so far.
    """
    if last_s >= best_s:
        return best_s
    if num_done == len(device):
        return last_s
    for v in range(len(device)):
        start_s, is_ready = free_s[device[v]], end_s[v] < 0.0
        for u in range(len(device)):
            if sent_s[v, u] >= 0.0:
                is_ready &= end_s[u] >= 0.0
                start_s = max(start_s, end_s[u] + sent_s[v, u])
        if not is_ready or start_s < latest_s:
            continue
        before_s, end_s[v] = free_s[device[v]], start_s + run_s[v]
        free_s[device[v]] = end_s[v] + overhead_s
        ends_s = max(last_s, end_s[v])
        best_s = _append(device, run_s, sent_s, overhead_s, end_s, free_s, ends_s, start_s, num_done + 1, best_s)
        free_s[device[v]], end_s[v] = before_s, -1.0
    return best_s


def every_placement(problem: ScheduleProblem) -> IntArray:
    """[D ** N, N]."""
    return np.array(list(itertools.product(range(problem.num_devices), repeat=problem.num_ops)))
