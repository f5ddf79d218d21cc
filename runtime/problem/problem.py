"""Problems: all that a placement method sees. Legend: U placement units, D devices, N ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import BoolArray, IntArray
from hsdag.runtime.objectives import LATENCY, Objective
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph of placement units to be spread over devices.

    A candidate is an array [U] of device indices, one per unit; ``units.partition`` expands it to ops.
    ``supported[u, d]`` says whether every op of unit u runs on device d. ``costs`` are those of units and transfers,
    if known: its ops are the units, in the same order. ``semantics`` is how plans are executed.
    ``ops`` are the costs of the ops themselves, if plans are judged by these: those of a problem file, or those of a
    model under HETERO; there ``costs`` only estimate launches and tensors that stay on their device.
    Raises ValueError when a table has another shape than [U, D] or a unit runs nowhere.
    """

    units: CoarseGraph
    devices: tuple[str, ...]
    supported: BoolArray  # [U, D]
    objective: Objective = LATENCY
    costs: ScheduleProblem | None = None
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen
    ops: ScheduleProblem | PlacementCosts | None = None

    def __post_init__(self) -> None:
        if self.supported.shape != (self.num_units, self.num_devices):
            raise ValueError(f"supported must be [{self.num_units}, {self.num_devices}], not {self.supported.shape}")
        if not self.supported.any(axis=1).all():
            unit = int(np.argmin(self.supported.any(axis=1)))
            raise ValueError(f"unit {unit} ({self.units.graph.op_names[unit]}) runs on no device")
        if self.costs is not None and self.costs.time_s.shape != self.supported.shape:
            raise ValueError(f"costs must be {self.supported.shape}, not {self.costs.time_s.shape}")

    @property
    def num_units(self) -> int:
        """Return U, the number of placement units."""
        return self.units.graph.num_ops

    @property
    def num_devices(self) -> int:
        """Return D, the number of devices."""
        return len(self.devices)

    @property
    def known_costs(self) -> ScheduleProblem:
        """Return the costs of a problem that has been checked to have them."""
        assert self.costs is not None
        return self.costs

    @property
    def simulated(self) -> tuple[ScheduleProblem, IntArray]:
        """Return the costs of a simulated machine, by op if known, else by unit; and [N] the unit of each op.

        Raises ValueError for a problem without costs.
        """
        if isinstance(self.ops, ScheduleProblem):
            return self.ops, self.units.partition.labels
        if self.costs is None:
            raise ValueError("a problem without costs cannot be simulated")
        return self.costs, np.arange(self.num_units)

    def expand(self, unit_devices: IntArray) -> IntArray:
        """Expand device indices per unit [..., U] to device indices per op [..., N]."""
        return unit_devices[..., self.units.partition.labels]

    def nearest(self, unit_devices: IntArray) -> Plan:
        """Return the plan with units as in ``unit_devices`` [U] where supported, else on their first device."""
        is_able = self.supported[np.arange(self.num_units), unit_devices]
        return Plan(np.where(is_able, unit_devices, self.supported.argmax(axis=1)))

    @property
    def alone(self) -> list[Plan]:
        """Return [D] the plans nearest to having all units on one device."""
        return [self.nearest(np.full(self.num_units, d)) for d in range(self.num_devices)]

    def is_legal(self, unit_devices: IntArray) -> bool:
        """Return whether every unit is on a device that supports it."""
        return bool(self.supported[np.arange(self.num_units), unit_devices].all())
