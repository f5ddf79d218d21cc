"""TaskGraph: what an execution consists of, runs of parts and transfers, each on one resource.

Legend: T tasks, E edges, R resources.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray, topological_order
from hsdag.ir.kernels import longest_before


@dataclass(frozen=True)
class Resource:
    """A device, or where ``destination`` is a device too, the channel from one to the other.

    ``capacity`` is how many tasks it takes at once: one for a device that is not to be shared.
    """

    name: str
    device: int
    destination: int | None = None
    capacity: int = 1


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks in the order that breaks ties, their resources, and who waits for whom. Made by ``of``.

    ``size_bytes`` is what a transfer moves and 0 for others. ``task_types`` are only shown.
    """

    name: str
    task_names: tuple[str, ...]  # [T]
    task_types: tuple[str, ...]  # [T]
    resource: IntArray  # [T]
    resources: tuple[Resource, ...]  # [R]
    device_names: tuple[str, ...]
    edges: IntArray  # [E, 2] the task that comes first, and the one that waits for it
    size_bytes: FloatArray  # [T]

    @staticmethod
    def of(
        task_names: tuple[str, ...],
        resource: ArrayLike,
        resources: tuple[Resource, ...],
        edges: ArrayLike,
        *,
        device_names: tuple[str, ...] | None = None,
        task_types: tuple[str, ...] | None = None,
        size_bytes: ArrayLike | None = None,
        name: str = "tasks",
    ) -> TaskGraph:
        """A task graph from plain sequences; edges given twice count once.

        Raises ValueError where tasks have no resource, or wait for each other in a circle.
        """
        count, places = len(task_names), np.asarray(resource, dtype=np.int64)
        if places.shape != (count,) or (count and not 0 <= places.min() <= places.max() < len(resources)):
            raise ValueError(f"each of the {count} tasks of {name!r} needs one of {len(resources)} resources")
        pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        topological_order(count, pairs[:, 0], pairs[:, 1])
        return TaskGraph(
            name=name,
            task_names=task_names,
            task_types=task_types or ("",) * count,
            resource=places,
            resources=resources,
            device_names=device_names or tuple(r.name for r in resources if r.destination is None),
            edges=np.unique(pairs, axis=0) if len(pairs) else pairs,
            size_bytes=np.zeros(count) if size_bytes is None else np.asarray(size_bytes, dtype=np.float64),
        )

    @property
    def num_tasks(self) -> int:
        """T."""
        return len(self.task_names)

    @cached_property
    def successors(self) -> Csr:
        """Tasks that wait for each task."""
        return Csr.build(self.num_tasks, self.edges[:, 0], self.edges[:, 1])

    @property
    def levels(self) -> list[list[int]]:
        """Tasks by the largest number of tasks that come one after another before each, by index within each."""
        before = Csr.build(self.num_tasks, self.edges[:, 1], self.edges[:, 0])
        order = topological_order(self.num_tasks, self.edges[:, 0], self.edges[:, 1])
        level = longest_before(order, before, np.ones(self.num_tasks), np.zeros(len(self.edges)))
        levels: list[list[int]] = [[] for _ in range(int(level.max(initial=-1)) + 1)]
        for task, number in enumerate(level.astype(np.int64).tolist()):
            levels[number].append(task)
        return levels

    def where(self, task: int) -> str:
        """A task and its resource, for people."""
        resource = self.resources[int(self.resource[task])]
        kind = "device" if resource.destination is None else "channel"
        return f"{self.task_names[task]!r} on {kind} {resource.name}"
