"""Turn a placed graph into a program of tasks: one per op, and one per result and device that it is sent to.

Legend: N nodes, T tasks, B buffers, D devices. A buffer is one result on one device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.executor.tasks import Resource, TaskGraph
from hsdag.runtime.torch.devices import LogicalDevice
from hsdag.runtime.torch.graph import Feed, TorchGraph
from hsdag.runtime.torch.op import PRECISIONS, PRODUCTS, Tensor, TensorFunction, with_rounded_operands

QUEUE = 2
"""Number of tasks that a thread holds at once: one runs, and the next is queued, to start without delay."""

UNUSED = -1
"""Number that stands for the buffer of a result that nothing reads."""


@dataclass(frozen=True, eq=False)
class Work:
    """The work of a task: a function of the buffers that it reads, whose results go to the buffers that it writes.

    Attributes:
        node: Op that runs, or whose result is sent.
        resource: Number of the resource on which the task runs.
        reads: Buffers of the function's arguments.
        writes: Buffers of its results, UNUSED for a result that nothing reads.
        size_bytes: Size of the result that a transfer sends, 0 for an op.
    """

    node: int
    name: str
    resource: int
    run: TensorFunction
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    size_bytes: float = 0.0


@dataclass(frozen=True, eq=False)
class Program:
    """A placed graph as tasks with their work.

    Attributes:
        uses: Number of reads of each buffer; being an output of the graph counts as one.
        feeds: Part of an input that is copied into a buffer, by buffer.
        constants: Node, port and buffer of each constant, and its element type there if it is not its own.
        outputs: Buffer of each output by name.
    """

    graph: TorchGraph
    devices: tuple[LogicalDevice, ...]
    device_of: IntArray  # [N]
    tasks: TaskGraph
    works: tuple[Work, ...]  # [T]
    buffer_device: tuple[int, ...]  # [B]
    uses: tuple[int, ...]  # [B]
    feeds: dict[int, Feed]
    constants: tuple[tuple[int, int, int, torch.dtype | None], ...]
    outputs: dict[str, int]

    @cached_property
    def node_of(self) -> IntArray:
        """Return the op [T] that each task runs, or whose result it sends."""
        return np.array([work.node for work in self.works], dtype=np.int64)

    @property
    def peak_bytes(self) -> float:
        """Return the most bytes that results take at once.

        This is for a single device, which runs the tasks one after another; no result is taken to be a view.
        """
        alive_bytes, left = dict[int, float](), list(self.uses)
        peak = now = 0.0
        for work in self.works:
            sizes = self.graph.nodes[work.node].output_bytes
            for buffer, size in zip(work.writes, sizes, strict=False):
                if buffer != UNUSED:
                    alive_bytes[buffer] = size
                    now += size
            peak = max(peak, now)
            for buffer in work.reads:
                left[buffer] -= 1
                if not left[buffer]:
                    now -= alive_bytes.pop(buffer, 0.0)  # inputs and constants are there before and after
        return peak

    def task_priority(self, op_priority: FloatArray) -> FloatArray:
        """Return the ranks [T] of tasks by the ranks [N] of ops; tasks with smaller ones run first.

        A transfer has the smallest rank of the tasks that wait for it.
        """
        priority = np.array(op_priority, dtype=np.float64)[self.node_of]
        for task, resource in enumerate(self.tasks.resource.tolist()):
            if self.tasks.resources[resource].destination is not None:
                priority[task] = priority[self.tasks.successors.of(task)].min()
        return priority


def build_program(graph: TorchGraph, device_of: ArrayLike, devices: Sequence[LogicalDevice]) -> Program:
    """Return the program of a graph whose node v is on ``devices[device_of[v]]``.

    Constants are on the devices of their readers from the start; if only products that round them read them, they have
    the element type that they are rounded to. Results are copied between devices even if both are on one physical
    device. Ops on a GPU that torch does not run are tasks of a thread beside its stream.
    """
    placed = np.asarray(device_of, dtype=np.int64)
    home: list[int] = placed.tolist()
    places = _places(graph, home)
    order: list[int] = graph.order.tolist()
    keys = [(v, port, d) for v in order for port in sorted(places[v]) for d in sorted(places[v][port])]
    buffers = {key: b for b, key in enumerate(keys)}
    beside: dict[tuple[int, int | None], int] = {}  # number of each further resource, added when first needed
    works: list[Work] = []
    readers: dict[int, set[torch.dtype | None]] = {}  # element types to which the readers of a buffer round it
    for v in order:
        node, here = graph.nodes[v], home[v]
        if node.constants:
            continue
        if node.run is not None:
            reads = tuple(buffers[u, port, here] for u, port in node.reads)
            writes = tuple(buffers.get((v, port, here), UNUSED) for port in range(max(places[v], default=-1) + 1))
            is_apart = devices[here].is_cuda and not node.in_torch
            resource = beside.setdefault((here, None), len(devices) + len(beside)) if is_apart else here
            precision = devices[here].precision if node.in_torch and node.op_type in PRODUCTS else "f32"
            works.append(Work(v, node.name, resource, with_rounded_operands(node.run, precision), reads, writes))
            for buffer in reads:
                readers.setdefault(buffer, set()).add(PRECISIONS[precision])
        sent = [(port, d) for port, there in sorted(places[v].items()) for d in sorted(there - {here})]
        for port, d in sent:
            resource = beside.setdefault((here, d), len(devices) + len(beside))
            size = node.output_bytes[port] if port < len(node.output_bytes) else 0.0
            label = f"{node.name} to {devices[d].name}" + (f" (port {port})" if port else "")
            reads, writes = (buffers[v, port, here],), (buffers[v, port, d],)
            works.append(Work(v, label, resource, copy_between(devices[here], devices[d]), reads, writes, size))
    outputs = {name: buffers[u, port, home[u]] for name, (u, port) in graph.outputs.items()}
    uses = Counter([b for work in works for b in work.reads] + list(outputs.values()))
    return Program(
        graph=graph,
        devices=tuple(devices),
        device_of=placed,
        tasks=_task_graph(graph, devices, beside, works),
        works=tuple(works),
        buffer_device=tuple(d for _, _, d in buffers),
        uses=tuple(uses[b] for b in range(len(buffers))),
        feeds={buffers[v, 0, home[v]]: node.feed for v, node in enumerate(graph.nodes) if node.feed is not None},
        constants=tuple(
            (v, port, b, _rounded(graph.nodes[v].constants[port], readers.get(b, set()), b in outputs.values()))
            for (v, port, _), b in buffers.items()
            if graph.nodes[v].constants
        ),
        outputs=outputs,
    )


def _rounded(constant: Tensor, readers: set[torch.dtype | None], is_output: bool) -> torch.dtype | None:
    """Return the element type to which all readers round a constant; None if it keeps its own."""
    if is_output or len(readers) != 1 or constant.dtype is not torch.float32:
        return None
    return next(iter(readers))


def copy_between(source: LogicalDevice, destination: LogicalDevice) -> TensorFunction:
    """Return a function that copies a result to another device; a view is made contiguous on the first device."""
    there = destination.physical
    is_enqueued = source.is_cuda and destination.is_cuda
    if source.physical == there:
        return lambda xs: (xs[0].clone(memory_format=torch.contiguous_format),)
    return lambda xs: (xs[0].contiguous().to(there, non_blocking=is_enqueued),)


def _places(graph: TorchGraph, home: Sequence[int]) -> list[dict[int, set[int]]]:
    """Return the devices that hold each result, by node and port.

    These are the devices of its readers and, unless it is a constant, the device of its node.
    """
    places: list[dict[int, set[int]]] = [{} if node.feed is None else {0: set()} for node in graph.nodes]
    for v, node in enumerate(graph.nodes):
        for u, port in node.reads:
            places[u].setdefault(port, set()).add(home[v])
    for u, port in graph.outputs.values():
        places[u].setdefault(port, set()).add(home[u])
    for v, node in enumerate(graph.nodes):
        for there in places[v].values():
            there |= set() if node.constants else {home[v]}
    return places


def _task_graph(
    graph: TorchGraph,
    devices: Sequence[LogicalDevice],
    beside: Iterable[tuple[int, int | None]],
    works: Sequence[Work],
) -> TaskGraph:
    """Return the graph of the tasks, whose resources are devices and those in ``beside``.

    Args:
        beside: Further resources, in the order of their numbers: channels as pairs of devices, and with None as the
            second, the threads of ops on a GPU that are left to OpenVINO.
    """
    resources = [
        Resource(device.name, i, None, device.depth if device.is_cuda else QUEUE, device.is_cuda)
        for i, device in enumerate(devices)
    ]
    for a, b in beside:
        if b is None:
            resources.append(Resource(f"{devices[a].name} by OpenVINO", a, capacity=QUEUE))
        else:
            is_stream = devices[a].is_cuda and devices[b].is_cuda
            depth = min(devices[a].depth, devices[b].depth) if is_stream else QUEUE
            resources.append(Resource(f"{devices[a].name}->{devices[b].name}", a, b, depth, is_stream))
    writer = {b: t for t, work in enumerate(works) for b in work.writes}
    return TaskGraph(
        tuple(work.name for work in works),
        [work.resource for work in works],
        tuple(resources),
        [(writer[b], t) for t, work in enumerate(works) for b in work.reads if b in writer],
        task_types=tuple(graph.nodes[work.node].op_type for work in works),
        size_bytes=[work.size_bytes for work in works],
        name=graph.name,
    )
