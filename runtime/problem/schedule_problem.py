"""Scheduling problems: all that a simulated schedule depends on, in struct-of-arrays form.

Legend: N ops, E edges, D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hsdag.base.errors import OptionError, option
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import (
    BoolArray,
    ComputationGraph,
    FloatArray,
    IntArray,
    inverse_of,
    topological_order,
)
from hsdag.ir.placement.placement import ModelRecord
from hsdag.runtime.objectives import Objective, Quantity

FREE = float("inf")
"""Bandwidth of a link that costs only its latency, and memory of a device without a limit."""

DEFAULTS = {"link_bandwidth_bytes_per_s": FREE, "memory_bytes": FREE, "power_w": np.nan}
"""Entries of the tables that ``ScheduleProblem.from_arrays`` fills by itself, where they are not 0."""


class CostSource(Enum):
    """The source of a cost model's figures."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    ANALYTIC = "analytic"
    FILE = "file"


@dataclass(frozen=True)
class OpLabels:
    """Properties of each op beside its costs; every column is [N], with "" where nothing is known."""

    types: tuple[str, ...]
    colocate: tuple[str, ...]  # name of the set of ops that must share a device
    meta_ops: tuple[str, ...]  # the op that this one is a shard of
    roles: tuple[str, ...]  # "shard", "reduce" or ""
    expressions: tuple[str, ...]  # what the op computes
    canonical: tuple[str, ...] = ()  # the op's name in placement files; op names by default

    @staticmethod
    def empty(num_ops: int, types: Sequence[str] | None = None) -> OpLabels:
        """Return labels of ops of which at most the types are known."""
        nothing = ("",) * num_ops
        return OpLabels(tuple(types) if types is not None else nothing, nothing, nothing, nothing, nothing)


@dataclass(frozen=True, eq=False)
class ScheduleProblem:
    """Ops with a duration per device, edges with sizes, and the links between devices.

    ``time_s`` is NaN where a device does not support an op. Diagonals of the link tables are ignored except under
    HETERO, where they are the cost of a tensor between two submodels on one device; an infinite bandwidth means a link
    that costs its latency alone. ``launch_s`` is the cost of starting each subgraph in sequential execution.
    ``slowdown[a, b]`` is the factor by which an op on device a takes longer while device b runs one too; the factors of
    several devices add up, less 1 each. It is None where devices do not slow each other down, and its diagonal is
    ignored. ``topological_order`` is the order of sequential execution. ``source`` says where the figures come from,
    ``model`` which model they are of, if known, and ``devices`` which OpenVINO devices the names stand for, or nothing.
    ``power_w`` is the power of devices while they compute, NaN where unknown.

    Raises ValueError when a table has the wrong shape or an entry outside its range, an edge leaves the
    graph, or the order is not topological.
    """

    name: str
    device_names: tuple[str, ...]
    op_names: tuple[str, ...]
    time_s: FloatArray  # [N, D]
    output_bytes: FloatArray  # [N]
    weight_bytes: FloatArray  # [N]
    edge_src: IntArray  # [E]
    edge_dst: IntArray  # [E]
    edge_bytes: FloatArray  # [E]
    edge_port: IntArray  # [E] which result of its producer an edge carries
    link_latency_s: FloatArray  # [D, D]
    link_bandwidth_bytes_per_s: FloatArray  # [D, D]
    memory_bytes: FloatArray  # [D], infinite without a limit
    launch_s: FloatArray  # [D]
    op_overhead_s: float
    transfer_overhead_s: float
    topological_order: IntArray  # [N]
    labels: OpLabels
    power_w: FloatArray  # [D]
    source: CostSource = CostSource.FILE
    model: ModelRecord | None = None
    devices: tuple[DeviceSpec, ...] = ()
    slowdown: FloatArray | None = None  # [D, D]

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_ranges()
        if not np.array_equal(np.sort(self.topological_order), np.arange(self.num_ops)):
            raise ValueError(f"the topological order of problem {self.name!r} is not a permutation of its ops")
        position = inverse_of(self.topological_order)
        if np.any(position[self.edge_src] >= position[self.edge_dst]):
            raise ValueError(f"the topological order of problem {self.name!r} puts a consumer before its producer")
        for array in vars(self).values():
            if isinstance(array, np.ndarray):
                array.flags.writeable = False

    def _check_shapes(self) -> None:
        n, e, d = self.num_ops, len(self.edge_src), self.num_devices
        shapes = {**_table_shapes(n, e, d), "time_s": (n, d), "edge_dst": (e,), "topological_order": (n,)}
        for field, shape in shapes.items():
            table = getattr(self, field)
            if table is not None and table.shape != shape:
                raise ValueError(f"{field} of problem {self.name!r} must be {shape}, not {table.shape}")
        if self.devices and tuple(device.name for device in self.devices) != self.device_names:
            raise ValueError(f"the devices of problem {self.name!r} must be those of its device names, in order")
        if n == 0 or d == 0:
            raise ValueError(f"problem {self.name!r} needs at least one op and one device")
        ends = np.concatenate([self.edge_src, self.edge_dst])
        if np.any((ends < 0) | (ends >= n)):
            raise ValueError(f"an edge of problem {self.name!r} leaves the graph")

    def _check_ranges(self) -> None:
        off = ~np.eye(self.num_devices, dtype=np.bool_)
        finite = {
            "time_s": self.time_s[self.supported],
            "output_bytes": self.output_bytes,
            "weight_bytes": self.weight_bytes,
            "edge_bytes": self.edge_bytes,
            "edge_port": self.edge_port,
            "link_latency_s": self.link_latency_s[off],
            "launch_s": self.launch_s,
            "overheads": np.array([self.op_overhead_s, self.transfer_overhead_s]),
            "power_w": self.power_w[~np.isnan(self.power_w)],
        }
        for field, values in finite.items():
            if not np.all(np.isfinite(values) & (values >= 0)):
                raise ValueError(f"{field} of problem {self.name!r} must be finite and not negative")
        if not np.all(self.link_bandwidth_bytes_per_s[off] > 0):
            raise ValueError(f"link_bandwidth_bytes_per_s of problem {self.name!r} must be positive")
        if not np.all(self.memory_bytes >= 0):
            raise ValueError(f"memory_bytes of problem {self.name!r} must not be negative")
        excess_of(self.slowdown, self.num_devices)
        if not self.supported.any(axis=1).all():
            op = self.op_names[int(np.argmin(self.supported.any(axis=1)))]
            raise ValueError(f"op {op!r} of problem {self.name!r} runs on no device")

    def check(self, objective: Objective) -> None:
        """Raise OptionError if figures that an objective needs are unknown."""
        for name, power_w in zip(self.device_names, self.power_w, strict=True):
            if Quantity.ENERGY in objective.quantities and np.isnan(power_w):
                raise OptionError(
                    f"{option('objective')} {objective.name} needs the power of every device, and device {name!r} of "
                    f"problem {self.name!r} has none: give it a power_w, in watts while it computes"
                )

    @property
    def num_ops(self) -> int:
        """Return N."""
        return len(self.op_names)

    @cached_property
    def with_single_results(self) -> ScheduleProblem:
        """Return the problem with all results that an op reads of another sent as one, of their summed sizes."""
        read, of_read = np.unique(np.stack([self.edge_src, self.edge_dst, self.edge_port]), axis=1, return_inverse=True)
        largest = np.zeros(read.shape[1])
        np.maximum.at(largest, of_read.reshape(-1), self.edge_bytes)
        ends, of_ends = np.unique(read[:2], axis=1, return_inverse=True)
        size = np.bincount(of_ends.reshape(-1), largest, ends.shape[1]).astype(np.float64)
        nothing = np.zeros_like(ends[0])
        return replace(self, edge_src=ends[0].copy(), edge_dst=ends[1].copy(), edge_bytes=size, edge_port=nothing)

    @property
    def canonical_names(self) -> tuple[str, ...]:
        """Return [N] the names of the ops in placement files."""
        return self.labels.canonical or self.op_names

    @property
    def excess(self) -> FloatArray:
        """Return [D, D] slow-downs minus 1; [0, 0] where devices do not slow each other down."""
        return excess_of(self.slowdown, self.num_devices)

    @property
    def num_devices(self) -> int:
        """Return D."""
        return len(self.device_names)

    @property
    def device_records(self) -> tuple[DeviceSpec, ...]:
        """Return [D] the devices as a placement file lists them; by default each is its own plugin."""
        return self.devices or tuple(DeviceSpec(name=name, plugin=name) for name in self.device_names)

    @cached_property
    def supported(self) -> BoolArray:
        """Return [N, D] whether a device runs an op."""
        return ~np.isnan(self.time_s)

    @cached_property
    def index_of(self) -> dict[str, int]:
        """Return the index of each op by its name."""
        return {name: v for v, name in enumerate(self.op_names)}

    @staticmethod
    def from_arrays(
        time_s: ArrayLike,
        edges: Sequence[tuple[int, int]] | IntArray,
        *,
        op_names: Sequence[str] | None = None,
        device_names: Sequence[str] | None = None,
        order: IntArray | None = None,
        **others: Any,
    ) -> ScheduleProblem:
        """Build a problem from plain tables; ``others`` are fields by name, of which a single number fills a table.

        ``edges`` are pairs of op indices, or [E, 2]; ``edge_bytes`` defaults to the producer's output, ``slowdown`` to
        None, other tables to 0 or to their ``DEFAULTS``. An edge carries the first result of its producer unless
        ``edge_port`` says otherwise. Raises ValueError as the class does, and when the edges form a cycle.
        """
        times = np.array(time_s, dtype=np.float64)
        name = others.setdefault("name", "problem")
        if times.ndim != 2:
            raise ValueError(f"time_s of problem {name!r} must be a table of ops by devices, not {times.shape}")
        n, d = times.shape
        pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
        src, dst = pairs[:, 0].copy(), pairs[:, 1].copy()
        fields: dict[str, Any] = {"labels": OpLabels.empty(n), "op_overhead_s": 0.0, "transfer_overhead_s": 0.0}
        fields |= {field: value for field, value in others.items() if value is not None}
        for field, shape in _table_shapes(n, len(src), d).items():
            if field != "slowdown" or field in fields:
                fields[field] = _table(fields.get(field, DEFAULTS.get(field, 0.0)), shape)
        if others.get("edge_bytes") is None:
            fields["edge_bytes"] = fields["output_bytes"][src]
        fields["edge_port"] = fields["edge_port"].astype(np.int64)
        return ScheduleProblem(
            device_names=tuple(device_names) if device_names is not None else tuple(f"d{i}" for i in range(d)),
            op_names=tuple(op_names) if op_names is not None else tuple(f"op{v}" for v in range(n)),
            time_s=times,
            edge_src=src,
            edge_dst=dst,
            topological_order=topological_order(n, src, dst) if order is None else order.copy(),
            **fields,
        )

    @staticmethod
    def from_graph(
        graph: ComputationGraph, time_s: ArrayLike, device_names: Sequence[str] | None = None, **others: Any
    ) -> ScheduleProblem:
        """Build the problem of placing ``graph``; sequential execution keeps its order, ``others`` are more fields.

        Raises ValueError when graph, times and device names disagree in size, or an op runs nowhere.
        """
        return ScheduleProblem.from_arrays(
            time_s,
            np.stack([graph.edge_src, graph.edge_dst], axis=1),
            output_bytes=graph.output_bytes,
            edge_bytes=graph.edge_bytes,
            edge_port=graph.edge_src_port,
            weight_bytes=graph.weight_bytes,
            name=graph.name,
            op_names=graph.op_names,
            device_names=device_names,
            labels=replace(OpLabels.empty(graph.num_ops, graph.op_types), canonical=graph.canonical_names),
            order=graph.topological_order,
            **others,
        )


def _table_shapes(num_ops: int, num_edges: int, num_devices: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tables that a number can fill."""
    of_ops, of_edges, of_devices, of_links = (num_ops,), (num_edges,), (num_devices,), (num_devices, num_devices)
    return {
        "output_bytes": of_ops,
        "weight_bytes": of_ops,
        "edge_bytes": of_edges,
        "edge_port": of_edges,
        "link_latency_s": of_links,
        "link_bandwidth_bytes_per_s": of_links,
        "memory_bytes": of_devices,
        "launch_s": of_devices,
        "slowdown": of_links,
        "power_w": of_devices,
    }


def excess_of(slowdown: FloatArray | None, num_devices: int) -> FloatArray:
    """Return [D, D] slow-downs minus 1, 0 on the diagonal; [0, 0] where devices do not slow each other down.

    Raises ValueError where a slow-down is not finite or below 1.
    """
    if slowdown is None:
        return np.zeros((0, 0))
    excess = np.where(np.eye(num_devices, dtype=np.bool_), 0.0, slowdown - 1.0)
    if not (np.isfinite(excess).all() and (excess >= 0).all()):
        raise ValueError("slowdown must be finite and at least 1")
    return excess if excess.any() else np.zeros((0, 0))


def _table(values: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Return a new table: filled with a single number, or a copy of the table."""
    array = np.asarray(values, dtype=np.float64)
    return np.full(shape, float(array)) if array.ndim == 0 else array.copy()
