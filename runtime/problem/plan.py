"""Plans: a placement and, optionally, priorities. Legend: N ops, U placement units."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The device of every unit and, if a method chooses it, the order in which devices take ready units.

    ``placement`` [U] has device indices, ``priority`` [U] ranks, smallest first. Arrays are copied and read-only;
    plans are equal if both are, and can be keys. Raises ValueError for shapes other than [U].
    """

    placement: IntArray  # [U]
    priority: IntArray | None = None  # [U]

    def __post_init__(self) -> None:
        for name in ("placement", "priority") if self.priority is not None else ("placement",):
            array = np.array(getattr(self, name), dtype=np.int64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if self.placement.ndim != 1 or (self.priority is not None and self.priority.shape != self.placement.shape):
            raise ValueError("a plan is one device per unit, and one rank per unit or none")

    @cached_property
    def key(self) -> bytes:
        """Return a key that is equal for equal plans."""
        return self.placement.tobytes() + (b"" if self.priority is None else self.priority.tobytes())

    @cached_property
    def unordered(self) -> Plan:
        """Return the plan without priorities."""
        return self if self.priority is None else Plan(self.placement)

    @cached_property
    def is_split(self) -> bool:
        """Return whether units are on more than one device."""
        return bool((self.placement != self.placement[0]).any())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        priority = "" if self.priority is None else f", {self.priority.tolist()}"
        return f"Plan({self.placement.tolist()}{priority})"


def priority_by_end(end_s: FloatArray, ties: FloatArray | IntArray) -> IntArray:
    """Return [N] ranks that keep a schedule: by ends, then by ``ties`` [N], such as starts.

    By starts, an op that takes no time could come behind one that starts as it ends, and would wait for its end.
    """
    return inverse_of(np.lexsort((ties, end_s)))


def op_priority(problem: ScheduleProblem, unit_of_op: IntArray, unit_priority: IntArray) -> IntArray:
    """Return [N] distinct ranks of ops from ranks [U] of units; ops of one unit are in topological order."""
    return inverse_of(np.lexsort((inverse_of(problem.topological_order), unit_priority[unit_of_op])))


def unit_priority(unit_of_op: IntArray, priority: IntArray) -> IntArray:
    """Return [U] distinct ranks of units from ranks [N] of ops: that of a unit's first op counts."""
    first = np.full(int(unit_of_op.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, unit_of_op, priority)
    return inverse_of(np.argsort(first, kind="stable"))
