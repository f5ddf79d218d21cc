"""CostModel: what ops, transfers and launches cost on a platform, and the latency of sequential execution.

Legend: U ops (placement units), E edges, D devices, B placements.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph import ComputationGraph, FloatArray, IntArray


class CostSource(Enum):
    """Where the figures of a cost model come from."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    ANALYTIC = "analytic"
    FILE = "file"


@dataclass(frozen=True, eq=False)
class CostModel:
    """Seconds per op and device, launch overhead per subgraph, and links between devices.

    ``time_s`` is NaN where a device does not support an op. The diagonals of the link tables are ignored.
    Raises ValueError when a table has the wrong shape or a negative entry.
    """

    time_s: FloatArray  # [U, D]
    launch_s: FloatArray  # [D]
    link_latency_s: FloatArray  # [D, D]
    link_bandwidth_bytes_per_s: FloatArray  # [D, D]
    source: CostSource

    def __post_init__(self) -> None:
        d = self.time_s.shape[1]
        if self.launch_s.shape != (d,) or self.link_latency_s.shape != (d, d):
            raise ValueError(f"launch_s must be [{d}] and link_latency_s [{d}, {d}]")
        if self.link_bandwidth_bytes_per_s.shape != (d, d):
            raise ValueError(f"link_bandwidth_bytes_per_s must be [{d}, {d}]")
        if np.nanmin(self.time_s, initial=0.0) < 0 or min(self.launch_s.min(), self.link_latency_s.min()) < 0:
            raise ValueError("times must not be negative")


def sequential_latency_s(graph: ComputationGraph, costs: CostModel, placements: IntArray) -> FloatArray:
    """[B] simulated latency of each placement [B, U] when subgraphs run one after another, as HETERO does.

    The sum of op times, of the transfer of every tensor to each other device that reads it (once per device),
    and of one launch per subgraph. Ops run in topological order, each maximal run on one device counting as
    a subgraph. Unsupported ops give infinity. O(B (U + E)).
    """
    num_placements, num_ops = placements.shape
    ops = np.arange(num_ops)
    time_s = np.nan_to_num(costs.time_s, nan=np.inf)
    compute_s = time_s[ops[None, :], placements].sum(axis=1)
    in_order = placements[:, graph.topological_order]
    starts = np.ones_like(in_order, dtype=np.bool_)
    starts[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    launch_s = (costs.launch_s[in_order] * starts).sum(axis=1)
    return np.asarray(compute_s + launch_s + _transfer_s(graph, costs, placements, num_placements), dtype=np.float64)


def _transfer_s(
    graph: ComputationGraph, costs: CostModel, placements: IntArray, num_placements: int
) -> NDArray[np.float64]:
    """[B] seconds of all transfers, one per tensor and remote device."""
    total_s = np.zeros(num_placements)
    if not graph.num_edges:
        return total_s
    tensors, tensor_of_edge = np.unique(np.stack((graph.edge_src, graph.edge_src_port)), axis=1, return_inverse=True)
    tensor_of_edge = tensor_of_edge.reshape(-1)
    tensor_bytes = np.zeros(tensors.shape[1])
    tensor_bytes[tensor_of_edge] = graph.edge_bytes
    home = placements[:, tensors[0]]  # [B, T]
    rows = np.arange(num_placements)[:, None]
    for device in range(costs.time_s.shape[1]):
        wanted = np.zeros(home.shape, dtype=np.bool_)
        reads = placements[:, graph.edge_dst] == device
        np.logical_or.at(wanted, (rows, tensor_of_edge[None, :]), reads)
        sent = wanted & (home != device)
        cost_s = costs.link_latency_s[home, device] + tensor_bytes / costs.link_bandwidth_bytes_per_s[home, device]
        total_s += np.where(sent, cost_s, 0.0).sum(axis=1)
    return total_s
