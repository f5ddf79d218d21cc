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

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"resource {self.name!r} must take at least one task, not {self.capacity}")


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks in the order that breaks ties, their resources, and who waits for whom.

    ``size_bytes`` is what a transfer moves and 0 for others. ``task_types`` are only shown. Raises ValueError where
    columns differ in length, an index names nothing, or tasks wait for each other in a circle.
    """

    name: str
    task_names: tuple[str, ...]  # [T]
    task_types: tuple[str, ...]  # [T]
    resource: IntArray  # [T]
    resources: tuple[Resource, ...]  # [R]
    device_names: tuple[str, ...]
    edges: IntArray  # [E, 2] the task that comes first, and the one that waits for it
    size_bytes: FloatArray  # [T]

    def __post_init__(self) -> None:
        count = len(self.task_names)
        if not len(self.resource) == len(self.task_types) == len(self.size_bytes) == count:
            raise ValueError(f"tasks of {self.name!r} need a type, a resource and a size each, for {count} tasks")
        if count and (self.resource.min() < 0 or self.resource.max() >= len(self.resources)):
            raise ValueError(f"a task of {self.name!r} names a resource beyond {len(self.resources)}")
        if self.edges.ndim != 2 or self.edges.shape[1] != 2:
            raise ValueError(f"edges of {self.name!r} must be [E, 2], not {self.edges.shape}")
        if len(self.edges) and (self.edges.min() < 0 or self.edges.max() >= count):
            raise ValueError(f"an edge of {self.name!r} names a task outside 0..{count - 1}")
        for resource in self.resources:
            ends = (resource.device, resource.device if resource.destination is None else resource.destination)
            if min(ends) < 0 or max(ends) >= len(self.device_names):
                raise ValueError(f"resource {resource.name!r} names a device beyond {len(self.device_names)}")
        topological_order(count, self.edges[:, 0], self.edges[:, 1])

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
        """A task graph from plain sequences; edges given twice count once."""
        count = len(task_names)
        pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        return TaskGraph(
            name=name,
            task_names=task_names,
            task_types=task_types or ("",) * count,
            resource=np.asarray(resource, dtype=np.int64),
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

    @cached_property
    def num_predecessors(self) -> IntArray:
        """[T] how many tasks each task waits for."""
        return np.bincount(self.edges[:, 1], minlength=self.num_tasks).astype(np.int64)

    @cached_property
    def order(self) -> IntArray:
        """[T] tasks such that none comes before one it waits for; ties by index."""
        return topological_order(self.num_tasks, self.edges[:, 0], self.edges[:, 1])

    @cached_property
    def level(self) -> IntArray:
        """[T] the largest number of tasks that come one after another before each task."""
        before = Csr.build(self.num_tasks, self.edges[:, 1], self.edges[:, 0])
        counted = longest_before(self.order, before, np.ones(self.num_tasks), np.zeros(len(self.edges)))
        return counted.astype(np.int64)

    @property
    def levels(self) -> list[IntArray]:
        """Tasks by level, by index within each."""
        by_level = np.argsort(self.level, kind="stable")
        ends = np.cumsum(np.bincount(self.level))
        return np.split(by_level, ends[:-1]) if self.num_tasks else []

    def where(self, task: int) -> str:
        """A task and its resource, for people."""
        resource = self.resources[int(self.resource[task])]
        kind = "device" if resource.destination is None else "channel"
        return f"{self.task_names[task]!r} on {kind} {resource.name}"
