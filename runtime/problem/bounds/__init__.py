"""Lower bounds: what no placement and no schedule of a problem can beat."""

from hsdag.runtime.problem.bounds.makespan import PATHS, WINDOWS, lower_bound, makespan_bound
from hsdag.runtime.problem.bounds.simple import (
    CRITICAL_PATH,
    LOAD,
    LONGEST_OP,
    Bound,
    critical_path_s,
    dual_load,
    largest,
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
    "lower_bound",
    "makespan_bound",
    "period_bound",
    "sequential_bound",
]
