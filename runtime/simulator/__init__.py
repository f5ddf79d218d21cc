"""The scheduling simulator: the time of a placement under a cost model; every figure it gives is simulated."""

from hsdag.runtime.problem.semantics import Execution, Links, Order, Semantics
from hsdag.runtime.simulator.simulation import Simulation, simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s, simulated_values

__all__ = [
    "Execution",
    "Links",
    "Order",
    "Semantics",
    "Simulation",
    "period_s",
    "simulate",
    "simulate_makespans",
    "simulated_values",
]
