"""DiviML's recursive lower bound over modules (section IV-B2), for one input.

Let R be what comes after the first module and M the ops of the module that lead on. All that descends from the last op
of M to end begins after OPT(M); which one is the last is not known: OPT(V) >= OPT(M) + min over x of OPT(behind x), x
being the ops that nothing of M follows. And OPT(V) >= OPT(R) + min over v of OPT(before v), v being the ops of R that
read nothing of R. Both hold in the other direction of time too. Legend: N ops, E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hsdag.ir.graph import BoolArray, IntArray
from hsdag.placers.exact.formulation import Formulation, induced
from hsdag.placers.exact.module_solving import ModuleSolver, ModuleTask

Optimum = Callable[[BoolArray], float]
"""From ops [N] to a lower bound of their optimum in seconds."""


def split_bound_s(f: Formulation, parts: Sequence[IntArray], solver: ModuleSolver) -> float:
    """The bound of a problem cut into ``parts``, the larger of both directions; modules are solved side by side."""
    tasks: dict[bytes, ModuleTask] = {}

    def begin(ops: BoolArray) -> float:
        if ops.tobytes() not in tasks:
            tasks[ops.tobytes()] = solver.submit(induced(f.problem, np.flatnonzero(ops)), {})
        return 0.0

    def module_s(ops: BoolArray) -> float:
        begin(ops)
        return tasks[ops.tobytes()].result().bound_s

    module = np.zeros(f.problem.num_ops, dtype=np.int64)
    for t, part in enumerate(parts):
        module[part] = t
    src, dst, every = f.problem.edge_src, f.problem.edge_dst, np.ones(len(module), dtype=np.bool_)
    bounds_s = [0.0]
    for optimum in (begin, module_s):  # what is asked for first is all begun
        forward = _Direction(f.reach, module, src, dst, optimum)
        backward = _Direction(f.reach.T, len(parts) - 1 - module, dst, src, optimum)
        bounds_s += [forward.bound_s(every), backward.bound_s(every)]
    return max(bounds_s)


@dataclass(frozen=True, eq=False)
class _Direction:
    """The recursion in one direction of time, along which modules are counted and edges lead."""

    reach: BoolArray  # [N, N]
    module: IntArray  # [N]
    src: IntArray  # [E]
    dst: IntArray  # [E]
    module_s: Optimum
    known: dict[bytes, float] = field(default_factory=dict)

    def bound_s(self, ops: BoolArray) -> float:
        key = ops.tobytes()
        if key not in self.known:
            self.known[key] = self._compute(ops)
        return self.known[key]

    def _compute(self, ops: BoolArray) -> float:
        whole = self.module == self.module[ops].min()
        first, rest = ops & whole, ops & ~whole
        best_s = self.module_s(first)
        if not rest.any():
            return best_s
        if np.array_equal(first, whole):  # of parts of modules it would ask for too many other parts
            best_s = max(best_s, self.bound_s(rest) + self._least_before(first, rest))
        leads = np.flatnonzero(first)[self.reach[first][:, rest].any(axis=1)]
        if not len(leads):
            return best_s
        through = np.zeros_like(first)
        through[leads] = True
        last = leads[~self.reach[np.ix_(leads, leads)].any(axis=1)]
        later_s = min(self.bound_s(row) for row in self.reach[last] & rest)
        return max(best_s, self.module_s(through) + later_s)

    def _least_before(self, first: BoolArray, rest: BoolArray) -> float:
        """What of the first module comes before any of the rest."""
        entries = rest.copy()
        entries[self.dst[rest[self.src] & rest[self.dst]]] = False
        before = self.reach[:, entries].T & first
        return min(self.module_s(row) for row in before) if before.any(axis=1).all() else 0.0
