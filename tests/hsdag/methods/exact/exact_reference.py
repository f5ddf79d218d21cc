"""Brute force over all placements and orders, and random problems to try it on; shares no code with the product."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

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
    edges: Sequence[tuple[int, int]] | None = None,
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
    drawn_edges = [(u, v) for v in range(num_ops) for u in range(v) if rng.random() < density]
    edges = drawn_edges if edges is None else edges
    drawn = {
        "output_bytes": amounts(0, 6, num_ops),
        "edge_bytes": amounts(0, 6, len(edges)) if seed % 2 else None,
        "link_latency_s": amounts(0, 3, (num_devices, num_devices)),
        "link_bandwidth_bytes_per_s": amounts(1, 4, (num_devices, num_devices)),
        "op_overhead_s": float(seed % 3 == 0),
    }
    label = rng.permutation(num_ops) if shuffled else np.arange(num_ops)
    return ScheduleProblem.from_arrays(time_s, [(label[u], label[v]) for u, v in edges], **(drawn | tables))


def least_makespan_s(problem: ScheduleProblem) -> float:
    """The shortest schedule of all placements and of all orders in which ops can be appended to their devices."""
    n, every = problem.num_ops, every_placement(problem)
    device = every[problem.supported[np.arange(n), every].all(axis=1)].T  # [N, B], as all below is by placement
    rows, run_s = np.arange(device.shape[1]), problem.time_s[np.arange(n)[:, None], device]
    edges = list(zip(problem.edge_src.tolist(), problem.edge_dst.tolist(), problem.edge_bytes, strict=True))
    sent_s: dict[int, dict[int, FloatArray]] = {v: {} for v in range(n)}  # by reader and what it reads
    for u, v, _ in edges:
        largest = np.max([np.where(device[w] == device[v], size, 0.0) for x, w, size in edges if x == u], axis=0)
        link = device[u], device[v]
        link_s = problem.link_latency_s[link] + largest / problem.link_bandwidth_bytes_per_s[link]
        sent_s[v][u] = np.where(device[u] == device[v], 0.0, link_s)

    def least_s(end_s: dict[int, FloatArray], free_s: FloatArray) -> FloatArray:
        """When all ends where some ops have ended and devices [B, D] are free."""
        found = np.full(len(rows), np.inf) if len(end_s) < n else np.max(list(end_s.values()), axis=0)
        for v in range(n):
            if v not in end_s and sent_s[v].keys() <= end_s.keys():
                ready_s = [end_s[u] + seconds for u, seconds in sent_s[v].items()]
                end = np.max([free_s[rows, device[v]], *ready_s], axis=0) + run_s[v]
                then_s = free_s.copy()
                then_s[rows, device[v]] = end + problem.op_overhead_s
                found = np.minimum(found, least_s({**end_s, v: end}, then_s))
        return found

    return float(least_s({}, np.zeros((len(rows), problem.num_devices))).min())


def every_placement(problem: ScheduleProblem) -> IntArray:
    """[D ** N, N]."""
    return np.array(list(itertools.product(range(problem.num_devices), repeat=problem.num_ops)))
