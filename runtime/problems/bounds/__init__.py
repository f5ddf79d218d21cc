"""Lower bounds: what no placement and no schedule of a problem can beat."""

from hsdag.runtime.problems.bounds.bound import Bound, largest
from hsdag.runtime.problems.bounds.simple import (
    CRITICAL_PATH,
    LOAD,
    critical_path_s,
    makespan_bound,
    period_bound,
    sequential_bound,
)

__all__ = [
    "CRITICAL_PATH",
    "LOAD",
    "Bound",
    "critical_path_s",
    "largest",
    "makespan_bound",
    "period_bound",
    "sequential_bound",
]
