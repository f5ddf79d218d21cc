"""How long it takes to split random placements into HETERO's submodels, by the number of ops, and how much memory.

Two graphs: residual blocks in a row, and ops that read two of the 64 before them. Every op draws its device alone.
Each size runs in a process of its own, so that its peak memory is its own; the split is checked to have no cycle.
Last come the seconds of CPU in which ``HeteroCosts`` scores placements of 400 ops, 64 at a time: every op drawn alone,
and runs of 20 ops on average.

    python benchmarks/submodels_speed.py --sizes 1000 10000 100000
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import numpy as np
from machine import machine

from hsdag.ir.graph import ComputationGraph, graph_from_edges, topological_order
from hsdag.ir.submodels import SubmodelCollector
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.problems.cost_model import CostModel, CostSource

SCORED_OPS, SCORED_AT_ONCE = 400, 64


def residual(num_ops: int, rng: np.random.Generator) -> ComputationGraph:
    """Blocks of two to six ops in a row, each added to what it reads."""
    edges, last = [], 0
    while last < num_ops - 8:
        skipped, length = last, int(rng.integers(2, 7))
        edges += [(v, v + 1) for v in range(last, last + length)]
        last += length
        edges += [(skipped, last)]
    return graph_from_edges(["Parameter", *["Add"] * last], edges)


def local(num_ops: int, rng: np.random.Generator) -> ComputationGraph:
    """Every op reads two of the 64 before it."""
    reads = np.maximum(np.arange(1, num_ops)[:, None] - rng.integers(1, 65, (num_ops - 1, 2)), 0)
    edges = [(int(u), v) for v, row in enumerate(reads, start=1) for u in row]
    return graph_from_edges(["Parameter", *["Add"] * (num_ops - 1)], edges)


GRAPHS = {"residual": residual, "local": local}


def measured(kind: str, num_ops: int, seed: int) -> tuple[int, int, float, float, float]:
    """Ops, submodels, seconds to prepare the graph, seconds of the best of three splits, peak memory in MB."""
    rng = np.random.default_rng(seed)
    graph = GRAPHS[kind](num_ops, rng)
    SubmodelCollector(graph_from_edges(["Parameter", "Add"], [(0, 1)])).submodel_of(np.array([0, 1]))  # compile
    begin_s = time.perf_counter()
    collector = SubmodelCollector(graph)
    prepared_s = time.perf_counter() - begin_s
    devices, split_s = rng.integers(0, 2, graph.num_ops), np.inf
    for _ in range(3):
        begin_s = time.perf_counter()
        found = collector.submodel_of(devices)
        split_s = min(split_s, time.perf_counter() - begin_s)
    across = found[graph.edge_src] != found[graph.edge_dst]
    topological_order(int(found.max()) + 1, found[graph.edge_src[across]], found[graph.edge_dst[across]])
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return graph.num_ops, int(found.max()) + 1, prepared_s, split_s, peak_mb


def scored(kind: str, seed: int) -> str:
    """Microseconds of CPU for each placement, of the fastest of ten batches, for both sorts of placements."""
    rng = np.random.default_rng(seed)
    graph = GRAPHS[kind](SCORED_OPS, rng)
    shape, ones = (SCORED_AT_ONCE, graph.num_ops), np.ones((2, 2))
    hetero = HeteroCosts.of(graph, CostModel(rng.random((graph.num_ops, 2)), ones[0], ones, ones, CostSource.FILE))
    figures = []
    for name, placements in (
        ("every op alone", rng.integers(0, 2, shape)),
        ("runs", np.cumsum(rng.random(shape) < 0.05, axis=1) % 2),
    ):
        together_s, times_s = hetero.latency_s(placements), []
        assert np.allclose(together_s, [hetero.latency_s(one[None])[0] for one in placements], rtol=1e-12)
        for _ in range(10):
            begin_s = time.process_time()
            hetero.latency_s(placements)
            times_s.append(time.process_time() - begin_s)
        figures.append(f"{name} {1e6 * min(times_s) / SCORED_AT_ONCE:.0f} us")
    return f"{kind:9s} {graph.num_ops:7d} ops, {SCORED_AT_ONCE} placements scored at a time: {', '.join(figures)} each"


def main() -> None:
    """Print one row per graph and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 4_000, 16_000, 100_000])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine())
    print(f"{'graph':9s} {'ops':>7s} {'submodels':>9s} {'prepare':>10s} {'split':>10s} {'split/op':>10s} {'peak':>8s}")
    for kind in GRAPHS:
        for size in options.sizes:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                num_ops, count, prepared_s, split_s, peak_mb = pool.apply(measured, (kind, size, options.seed))
            times = f"{prepared_s:8.3f} s {split_s:8.4f} s {1e6 * split_s / num_ops:7.2f} us"
            print(f"{kind:9s} {num_ops:7d} {count:9d} {times} {peak_mb:5.0f} MB", flush=True)
    for kind in GRAPHS:
        print(scored(kind, options.seed))


if __name__ == "__main__":
    main()
