"""CostModel: what ops, transfers and launches cost on a platform. Legend: U ops (placement units), D devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from hsdag.ir.graph import FloatArray


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
