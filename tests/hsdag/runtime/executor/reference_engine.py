"""A slow engine in virtual time that shares no code with the product, random task graphs, and laws of schedules."""

from __future__ import annotations

import itertools
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
def cases(draw: st.DrawFn, shortest: int = 0, *, with_channels: bool = True, one_at_a_time: bool = False) -> Case:
    """Random tasks on two or three devices, and on channels between them; ties abound."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    num_devices, count = draw(st.integers(1, 3)), draw(st.integers(0, 30))
    capacity = [1] * 9 if one_at_a_time else rng.integers(1, 4, 9).tolist()
    resources = [Resource(f"d{d}", d, capacity=capacity[d]) for d in range(num_devices)]
    if with_channels:
        pairs = itertools.permutations(range(num_devices), 2)
        resources += [Resource(f"d{a}-d{b}", a, b, capacity[3 + a + b]) for a, b in pairs]
    label = rng.permutation(count)  # indices need not be topological
    tail, head = np.nonzero(np.triu(rng.random((count, count)) < rng.uniform(0, 4) / max(count, 1), 1))
    graph = TaskGraph.of(
        tuple(f"t{v}" for v in range(count)),
        rng.integers(0, len(resources), count),
        tuple(resources),
        np.stack([label[tail], label[head]], axis=1),
        size_bytes=rng.integers(0, 9, count).astype(float),
    )
    ranks = rng.integers(0, 5, count).astype(float) if draw(st.booleans()) else None
    return Case(graph, rng.integers(shortest, 6, count) * EIGHTH_S, ranks)


def inputs_of(graph: TaskGraph) -> list[list[int]]:
    """What each task waits for."""
    inputs: list[list[int]] = [[] for _ in range(graph.num_tasks)]
    for tail, head in graph.edges.tolist():
        inputs[head].append(tail)
    return inputs


def reference_starts(case: Case, num_runs: int = 1) -> list[tuple[float, int, int]]:
    """Start, run and task, in rounds: all that can start does, then time goes on to the next end.

    Of what waits for a resource, the oldest run goes first, then the smallest rank, or what was ready first.
    """
    graph, inputs = case.graph, inputs_of(case.graph)
    tasks = range(graph.num_tasks)
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
