"""Program: a graph and a placement turned into tasks, one per op and one per result and device it is sent to.

Legend: N nodes, T tasks, B buffers, D devices. A buffer is one result on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from hsdag.ir.errors import OptionError
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.executor import Resource, TaskGraph
from hsdag.runtime.torch.devices import LogicalDevice
from hsdag.runtime.torch.graph import Feed, Tensor, TensorFunction, TorchGraph

QUEUE = 2
"""Tasks that a device or channel holds at once: one runs, the next is there already when it ends."""

UNUSED = -1
"""The buffer of a result that nothing reads."""


@dataclass(frozen=True, eq=False)
class Work:
    """What a task does: read buffers on its device, compute, write buffers (UNUSED where nobody reads a result)."""

    run: TensorFunction
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """Tasks with their work. ``uses`` [B] counts the reads of a buffer, one more where it is a result."""

    graph: TorchGraph
    devices: tuple[LogicalDevice, ...]
    device_of: IntArray  # [N]
    tasks: TaskGraph
    works: tuple[Work, ...]  # [T]
    node_of: IntArray  # [T] the op that runs, or whose result is sent
    buffer_device: tuple[int, ...]  # [B]
    uses: tuple[int, ...]  # [B]
    feeds: dict[int, Feed]  # buffer -> what is fed there
    constants: tuple[tuple[int, int, int], ...]  # node, port, buffer
    outputs: dict[str, int]  # name -> buffer

    @property
    def num_buffers(self) -> int:
        """B."""
        return len(self.buffer_device)

    def task_ranks(self, op_ranks: FloatArray) -> FloatArray:
        """[T] ranks from those of the ops [N], smallest first; a transfer has the rank of the first that waits."""
        if op_ranks.shape != (self.graph.num_nodes,):
            raise ValueError(f"{self.graph.num_nodes} ranks are needed, one for each op, not {op_ranks.shape}")
        ranks = np.array(op_ranks, dtype=np.float64)[self.node_of]
        for task, resource in enumerate(self.tasks.resource.tolist()):
            if self.tasks.resources[resource].destination is not None:
                ranks[task] = ranks[self.tasks.successors.of(task)].min()
        return ranks


def build_program(graph: TorchGraph, device_of: ArrayLike, devices: Sequence[LogicalDevice]) -> Program:
    """The program of ``graph`` with each node on ``devices[device_of[v]]``.

    Constants lie on the devices of their readers from the start. Results are copied between devices, also where both
    are on one physical device.

    Raises OptionError where the placement does not fit the graph or the devices.
    """
    names = [device.name for device in devices]
    if not names or len(set(names)) != len(names):
        raise OptionError(f"at least one device is needed, each with a name of its own, not {names}")
    placed = np.asarray(device_of, dtype=np.int64)
    if placed.shape != (graph.num_nodes,) or (placed.size and not 0 <= placed.min() <= placed.max() < len(devices)):
        raise OptionError(
            f"a placement of {graph.name!r} gives each of its {graph.num_nodes} ops a device below {len(devices)}"
        )
    return _Builder(graph, placed, tuple(devices)).build()


def copy_between(source: LogicalDevice, destination: LogicalDevice) -> TensorFunction:
    """What copies a result from one device to another. Results beyond the first are only kept until the copy ends.

    Between GPUs that do not reach each other's memory it goes through pinned memory of the CPU.
    """
    here, there = source.physical, destination.physical
    if here == there:
        return lambda xs: (xs[0].clone(memory_format=torch.contiguous_format),)
    if source.is_cuda != destination.is_cuda:
        return lambda xs: (xs[0].to(there),)
    if torch.cuda.can_device_access_peer(there, here):
        return lambda xs: (torch.empty(xs[0].shape, dtype=xs[0].dtype, device=there).copy_(xs[0], non_blocking=True),)

    def staged(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        (x,) = xs
        pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        pinned.copy_(x, non_blocking=True)
        out = torch.cuda.Event()  # type: ignore[no-untyped-call]
        out.record(torch.cuda.current_stream(here))
        torch.cuda.current_stream(there).wait_event(out)
        return torch.empty(x.shape, dtype=x.dtype, device=there).copy_(pinned, non_blocking=True), pinned

    return staged


class _Task(NamedTuple):
    node: int
    name: str
    resource: int
    size_bytes: float
    work: Work


class _Builder:
    """Collects buffers, tasks and resources, node by node."""

    def __init__(self, graph: TorchGraph, placed: IntArray, devices: tuple[LogicalDevice, ...]) -> None:
        self.graph, self.placed, self.devices = graph, placed, devices
        self.home: list[int] = placed.tolist()
        self.buffers: dict[tuple[int, int, int], int] = {}  # (node, port, device)
        self.buffer_device: list[int] = []
        self.writer: dict[int, int] = {}  # buffer -> task
        self.resources = [Resource(device.name, i, capacity=QUEUE) for i, device in enumerate(devices)]
        self.channels: dict[tuple[int, int], int] = {}
        self.tasks: list[_Task] = []
        self.readers = self._readers()

    def build(self) -> Program:
        """All of it."""
        feeds: dict[int, Feed] = {}
        constants: list[tuple[int, int, int]] = []
        for v in self.graph.order.tolist():
            node = self.graph.nodes[v]
            if node.constants:
                at = [(port, d) for port in sorted(self.readers[v]) for d in sorted(self.readers[v][port])]
                constants += [(v, port, self._buffer(v, port, d)) for port, d in at]
                continue
            if node.feed is not None:
                feeds[self._buffer(v, 0, self.home[v])] = node.feed
            else:
                self._add_op(v)
            self._add_transfers(v)
        outputs = {name: self.buffers[u, port, self.home[u]] for name, (u, port) in self.graph.outputs.items()}
        uses = [0] * len(self.buffer_device)
        works = tuple(task.work for task in self.tasks)
        for buffer in [b for work in works for b in work.reads] + list(outputs.values()):
            uses[buffer] += 1
        nodes = np.array([task.node for task in self.tasks], dtype=np.int64)
        return Program(
            self.graph, self.devices, self.placed, self._task_graph(), works, nodes, tuple(self.buffer_device),
            tuple(uses), feeds, tuple(constants), outputs,
        )  # fmt: skip

    def _readers(self) -> list[dict[int, set[int]]]:
        """By node and port, the devices that need the result; outputs are needed where they are made."""
        readers: list[dict[int, set[int]]] = [{} for _ in self.graph.nodes]
        for v, node in enumerate(self.graph.nodes):
            for u, port in node.reads:
                readers[u].setdefault(port, set()).add(self.home[v])
        for u, port in self.graph.outputs.values():
            readers[u].setdefault(port, set()).add(self.home[u])
        return readers

    def _buffer(self, v: int, port: int, device: int) -> int:
        """The buffer of a result on a device; a new one at the first call."""
        key = (v, port, device)
        if key not in self.buffers:
            self.buffers[key] = len(self.buffer_device)
            self.buffer_device.append(device)
        return self.buffers[key]

    def _add_op(self, v: int) -> None:
        node, device = self.graph.nodes[v], self.home[v]
        reads = tuple(self.buffers[u, port, device] for u, port in node.reads)
        num_ports = max(self.readers[v], default=-1) + 1
        writes = tuple(
            self._buffer(v, port, device) if port in self.readers[v] else UNUSED for port in range(num_ports)
        )
        assert node.run is not None
        self._add_task(_Task(v, node.name, device, 0.0, Work(node.run, reads, writes)))

    def _add_transfers(self, v: int) -> None:
        node, source = self.graph.nodes[v], self.home[v]
        for port in sorted(self.readers[v]):
            read = self._buffer(v, port, source)
            size = node.output_bytes[port] if port < len(node.output_bytes) else 0.0
            for device in sorted(self.readers[v][port] - {source}):
                resource = self._channel(source, device)
                copy = copy_between(self.devices[source], self.devices[device])
                label = f"{node.name} to {self.devices[device].name}" + (f" (port {port})" if port else "")
                work = Work(copy, (read,), (self._buffer(v, port, device),))
                self._add_task(_Task(v, label, resource, size, work))

    def _add_task(self, task: _Task) -> None:
        self.writer.update(dict.fromkeys(task.work.writes, len(self.tasks)))
        self.tasks.append(task)

    def _channel(self, source: int, destination: int) -> int:
        """The resource that sends from one device to another; made when first needed."""
        if (source, destination) not in self.channels:
            a, b = self.devices[source], self.devices[destination]
            self.channels[source, destination] = len(self.resources)
            self.resources.append(Resource(f"{a.name}->{b.name}", source, destination, QUEUE))
        return self.channels[source, destination]

    def _task_graph(self) -> TaskGraph:
        reads = [(b, t) for t, task in enumerate(self.tasks) for b in task.work.reads]
        return TaskGraph.of(
            tuple(task.name for task in self.tasks),
            [task.resource for task in self.tasks],
            tuple(self.resources),
            [(self.writer[b], t) for b, t in reads if b in self.writer],
            device_names=tuple(device.name for device in self.devices),
            task_types=tuple(self.graph.nodes[task.node].op_type for task in self.tasks),
            size_bytes=[task.size_bytes for task in self.tasks],
            name=self.graph.name,
        )
