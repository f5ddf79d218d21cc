"""CostModel: what ops, transfers and launches cost on a platform. Legend: U ops (placement units), D devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray


class CostSource(Enum):
    """Where the figures of a cost model come from."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    ANALYTIC = "analytic"
    FILE = "file"


@dataclass(frozen=True, eq=False)
class CostModel:
    """Seconds per op and device, launch overhead per subgraph, and links between devices.

    ``time_s`` is NaN where a device does not support an op. ``slowdown[a, b]`` is how many times as long an op takes
    on device a while device b works too; None where nothing is known of that. The diagonals of these tables and of
    those of links are ignored.
    Raises ValueError when a table has the wrong shape or a negative entry, or a slow-down is below 1.
    """

    time_s: FloatArray  # [U, D]
    launch_s: FloatArray  # [D]
    link_latency_s: FloatArray  # [D, D]
    link_bandwidth_bytes_per_s: FloatArray  # [D, D]
    source: CostSource
    slowdown: FloatArray | None = None  # [D, D]

    def __post_init__(self) -> None:
        d = self.time_s.shape[1]
        if self.launch_s.shape != (d,) or self.link_latency_s.shape != (d, d):
            raise ValueError(f"launch_s must be [{d}] and link_latency_s [{d}, {d}]")
        if self.link_bandwidth_bytes_per_s.shape != (d, d):
            raise ValueError(f"link_bandwidth_bytes_per_s must be [{d}, {d}]")
        if np.nanmin(self.time_s, initial=0.0) < 0 or min(self.launch_s.min(), self.link_latency_s.min()) < 0:
            raise ValueError("times must not be negative")
        excess_of(self.slowdown, d)


def excess_of(slowdown: FloatArray | None, num_devices: int) -> FloatArray:
    """[D, D] what slow-downs exceed 1 by, 0 on the diagonal; [0, 0] where devices do not slow each other down.

    Raises ValueError where the table is not [D, D], or a slow-down is not finite or below 1.
    """
    if slowdown is None:
        return np.zeros((0, 0))
    if slowdown.shape != (num_devices, num_devices):
        raise ValueError(f"slowdown must be [{num_devices}, {num_devices}], not {slowdown.shape}")
    excess = np.where(np.eye(num_devices, dtype=np.bool_), 0.0, slowdown - 1.0)
    if not (np.isfinite(excess).all() and (excess >= 0).all()):
        raise ValueError("slowdown must be finite and at least 1")
    return excess if excess.any() else np.zeros((0, 0))
