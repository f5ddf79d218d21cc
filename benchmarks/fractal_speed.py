"""Exact fractal dimension of 10,000 ops on one core: seconds with and without compilation, and peak memory.

Two graphs: a deep residual network (long diameter) and a random sparse DAG (short one). The answer is checked on a
sample of ops by shortest paths from scipy first. Exit status 1 when the bar (20 s, 1 GB) is missed.

Usage: python benchmarks/fractal_speed.py [--ops 10000]
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time

import numpy as np
from machine import machine
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from hsdag.features import fractal_dimension
from hsdag.ir import ComputationGraph, graph_from_edges

LIMIT_S, LIMIT_BYTES = 20.0, 1e9


def deep_network(n: int) -> ComputationGraph:
    edges = [(v - 1, v) for v in range(1, n)] + [(v - 4, v) for v in range(4, n, 4)]
    return graph_from_edges(["X"] * n, edges)


def random_network(n: int) -> ComputationGraph:
    rng = np.random.default_rng(0)
    edges = [(int(rng.integers(0, v)), v) for v in range(1, n)] + [(int(rng.integers(0, v)), v) for v in range(1, n, 4)]
    return graph_from_edges(["X"] * n, edges)


def check(graph: ComputationGraph, found: np.ndarray) -> None:
    sample = np.random.default_rng(1).choice(graph.num_ops, 12, replace=False)
    ones = np.ones(graph.num_edges)
    matrix = coo_array((ones, (graph.edge_src, graph.edge_dst)), shape=(graph.num_ops,) * 2).tocsr()
    for v, distances in zip(sample, dijkstra(matrix, directed=False, indices=sample, unweighted=True), strict=True):
        counts = np.cumsum(np.bincount(distances[np.isfinite(distances)].astype(int)))[1:] - 1
        slope = np.polyfit(np.log(np.arange(1, len(counts) + 1)), np.log(counts), 1)[0]
        if not np.isclose(slope, found[v]):
            sys.exit(f"op {v}: {found[v]} instead of {slope}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=10_000)
    num_ops = parser.parse_args().ops
    print(machine())
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    worst_s = 0.0
    for make in (deep_network, random_network):
        graph = make(num_ops)
        begin = time.perf_counter()
        found = fractal_dimension(graph)
        first_s = time.perf_counter() - begin
        check(graph, found)
        begin = time.perf_counter()
        fractal_dimension(graph)
        again_s = time.perf_counter() - begin
        worst_s = max(worst_s, first_s)
        print(f"{make.__name__:15s} {num_ops} ops: first call {first_s:.2f} s, then {again_s:.2f} s")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    print(f"peak memory {peak_bytes / 1e9:.2f} GB; bars {LIMIT_S:.0f} s and {LIMIT_BYTES / 1e9:.0f} GB")
    return 0 if worst_s <= LIMIT_S and peak_bytes <= LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
