"""StreamPlan: the tasks of a program in one fixed order, and who waits for whom where streams differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph import FloatArray, ranked_order
from hsdag.runtime.torch_backend.program import Program


@dataclass(frozen=True)
class Step:
    """One task on the stream of its resource.

    ``waits`` are earlier tasks on other streams whose ends it needs: for each stream the last one only. ``records``
    says whether another stream waits for its end. ``drops`` are buffers that only its own stream has touched, and
    that it reads last: their memory may be used again by what follows on the stream.
    """

    task: int
    resource: int
    waits: tuple[int, ...]
    records: bool
    drops: tuple[int, ...]


def stream_plan(program: Program, ranks: FloatArray | None = None) -> tuple[Step, ...]:
    """The plan that takes, of the tasks whose inputs come before, the one with the smallest of ``ranks`` [T].

    Without ranks tasks come in the order of their index. What crosses streams is never dropped.
    """
    tasks = program.tasks
    rank = np.arange(tasks.num_tasks) if ranks is None else ranks
    order = ranked_order(tasks.num_tasks, tasks.edges[:, 0], tasks.edges[:, 1], rank).tolist()
    resource = program.tasks.resource.tolist()
    waits = _waits(program, order, resource)
    waited_for = {before for tasks in waits.values() for before in tasks}
    drops = _drops(program, order, resource)
    return tuple(Step(t, resource[t], waits[t], t in waited_for, drops.get(t, ())) for t in order)


def _waits(program: Program, order: list[int], resource: list[int]) -> dict[int, tuple[int, ...]]:
    """By task, the latest task of every other stream that it waits for."""
    position = {task: i for i, task in enumerate(order)}
    latest: dict[int, dict[int, int]] = {task: {} for task in order}
    for before, after in program.tasks.edges.tolist():
        stream = resource[before]
        known = latest[after].get(stream)
        if stream != resource[after] and (known is None or position[known] < position[before]):
            latest[after][stream] = before
    return {task: tuple(sorted(found.values(), key=position.__getitem__)) for task, found in latest.items()}


def _drops(program: Program, order: list[int], resource: list[int]) -> dict[int, tuple[int, ...]]:
    """By task, the buffers that it reads last, where one stream alone writes and reads them."""
    streams: dict[int, set[int]] = {}
    last: dict[int, int] = {}
    written: set[int] = set()
    for task in order:
        work = program.works[task]
        written.update(work.writes)
        for buffer in (*work.reads, *work.writes):
            streams.setdefault(buffer, set()).add(resource[task])
            last[buffer] = task
    kept = set(program.outputs.values())
    drops: dict[int, tuple[int, ...]] = {}
    for buffer, task in last.items():
        if buffer in written and buffer >= 0 and buffer not in kept and len(streams[buffer]) == 1:
            drops[task] = (*drops.get(task, ()), buffer)
    return drops
