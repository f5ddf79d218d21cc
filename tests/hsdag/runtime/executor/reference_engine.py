"""A slow engine in virtual time that shares no code with the product, random task graphs, and laws of schedules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from hsdag.runtime.executor.tasks import Resource, TaskGraph

EIGHTH_S = 0.125


@dataclass(frozen=True)
class Case:
    """A task graph with durations and ranks."""

    graph: TaskGraph
    duration_s: np.ndarray  # [T]
    ranks: np.ndarray | None  # [T]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Random tasks on up to five resources; ties abound."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    num_resources, count = draw(st.integers(1, 5)), draw(st.integers(0, 30))
    label = rng.permutation(count)  # indices need not be topological
    tail, head = np.nonzero(np.triu(rng.random((count, count)) < rng.uniform(0, 4) / max(count, 1), 1))
    graph = TaskGraph(
        tuple(f"t{v}" for v in range(count)),
        rng.integers(0, num_resources, count),
        tuple(Resource(f"d{d}", d, capacity=int(rng.integers(1, 4))) for d in range(num_resources)),
        np.stack([label[tail], label[head]], axis=1),
    )
    ranks = rng.integers(0, 5, count).astype(float) if draw(st.booleans()) else None
    return Case(graph, rng.integers(0, 6, count) * EIGHTH_S, ranks)


def reference_starts(case: Case, num_runs: int = 1) -> list[tuple[float, int, int]]:
    """Start, run and task, in rounds: all that can start does, then time goes on to the next end.

    Of what waits for a resource, the oldest run goes first, then the smallest rank, or what was ready first.
    """
    graph, tasks = case.graph, range(case.graph.num_tasks)
    inputs = [graph.edges[graph.edges[:, 1] == t, 0].tolist() for t in tasks]
    now_s, starts, ended = 0.0, {}, set[tuple[int, int]]()
    ready_s: dict[tuple[int, int], float] = {}
    running: dict[tuple[int, int], float] = {}
    while len(ended) < num_runs * graph.num_tasks:
        for run in range(num_runs):
            for t in tasks:
                if all((run, u) in ended for u in inputs[t]):
                    ready_s.setdefault((run, t), now_s)
        queue = sorted((run, ready_s[run, t] if case.ranks is None else case.ranks[t], t) for run, t in ready_s)
        for run, _, t in queue:
            place = graph.resource[t]
            busy = sum(graph.resource[u] == place for _, u in running)
            if (run, t) not in starts and busy < graph.resources[place].capacity:
                starts[run, t], running[run, t] = now_s, now_s + case.duration_s[t]
        now_s = min(running.values())
        done = {each for each, end_s in running.items() if end_s == now_s}
        ended |= done
        running = {each: end_s for each, end_s in running.items() if each not in done}
    return sorted((start_s, run, t) for (run, t), start_s in starts.items())
