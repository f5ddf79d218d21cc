"""Lower bounds: what no placement and no schedule of a problem can beat."""

from hsdag.runtime.problem.bounds.bound import Bound, largest
from hsdag.runtime.problem.bounds.makespan import PATHS, WINDOWS, makespan_bound
from hsdag.runtime.problem.bounds.prices import dual_load
from hsdag.runtime.problem.bounds.simple import (
    CRITICAL_PATH,
    LOAD,
    LONGEST_OP,
    critical_path_s,
    period_bound,
    sequential_bound,
)

__all__ = [
    "CRITICAL_PATH",
    "LOAD",
    "LONGEST_OP",
    "PATHS",
    "WINDOWS",
    "Bound",
    "critical_path_s",
    "dual_load",
    "largest",
    "makespan_bound",
    "period_bound",
    "sequential_bound",
]
