"""DiviML's recursive lower bound over modules of several channels (section IV-B2), for latency.

OPT(V) >= OPT(M1) + min over inputs u of OPT(dep(u) in G2), and OPT(V) >= OPT(G2) + min over outputs v of
OPT(pre(v) in M1). The first needs every op of M1 to lead to an output, the second every op of G2 to come from an
input; where that does not hold, the minimum is 0. Legend: N ops, T modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hsdag.ir.graph import BoolArray, IntArray
from hsdag.placers.exact.formulation import Formulation, induced
from hsdag.placers.exact.module_solving import ModuleSolver, ModuleTask

_Optimum = Callable[[BoolArray], float]
"""From ops [N] to a lower bound of their optimum in seconds."""


class RecursiveBound:
    """The bound of modules ``parts``, read from both ends; solving begins at once."""

    def __init__(self, f: Formulation, parts: Sequence[IntArray], solver: ModuleSolver) -> None:
        self._problem, self._solver = f.problem, solver
        self._tasks: dict[bytes, ModuleTask] = {}
        self._masks = []
        for part in parts:
            mask = np.zeros(f.problem.num_ops, dtype=np.bool_)
            mask[part] = True
            self._masks.append(mask)
        pairs = np.asarray(list(f.edges), dtype=np.int64).reshape(-1, 2)
        self._directions = [
            _Direction(f.reach | np.eye(len(f.reach), dtype=np.bool_), pairs, self._masks),
            _Direction((f.reach | np.eye(len(f.reach), dtype=np.bool_)).T, pairs[:, ::-1], self._masks[::-1]),
        ]
        for direction in self._directions:
            for mask in direction.wanted():
                self._submit(mask)

    def _submit(self, mask: BoolArray) -> ModuleTask:
        key = mask.tobytes()
        if key not in self._tasks:
            self._tasks[key] = self._solver.submit(induced(self._problem, np.flatnonzero(mask)), {})
        return self._tasks[key]

    def seconds(self) -> float:
        """The bound; waits for modules that are being solved."""
        return max(
            direction.bound_s(lambda mask: self._submit(mask).result().bound_s) for direction in self._directions
        )


class _Direction:
    """The recursion in one direction of time: ``reach`` [N, N] includes each op itself."""

    def __init__(self, reach: BoolArray, pairs: IntArray, masks: Sequence[BoolArray]) -> None:
        self._reach, self._masks = reach, masks
        module = np.zeros(len(reach), dtype=np.int64)
        for t, mask in enumerate(masks):
            module[mask] = t
        self._module = module
        crossing = pairs[module[pairs[:, 0]] != module[pairs[:, 1]]]
        self._outputs = [np.unique(crossing[module[crossing[:, 0]] == t, 0]) for t in range(len(masks))]
        self._heads = crossing  # [C, 2] channels from module to module

    def inputs(self, t: int, seen: BoolArray) -> IntArray:
        """Ops behind module t that read a result of those ``seen`` in modules up to t."""
        from_seen = seen[self._heads[:, 0]] & (self._module[self._heads[:, 0]] <= t)
        return np.unique(self._heads[from_seen & (self._module[self._heads[:, 1]] > t), 1])

    def _all_lead_on(self, ops: BoolArray, t: int, seen: BoolArray) -> bool:
        """Whether every one of ``ops`` has a path to an input behind module t."""
        ends = self.inputs(t, seen)
        return bool(len(ends)) and bool(self._reach[np.ix_(np.flatnonzero(ops), ends)].any(axis=1).all())

    def _later(self, t: int) -> BoolArray:
        return self._module >= t

    def wanted(self) -> list[BoolArray]:
        """Parts of modules whose optimum the recursion asks for."""
        found = list(self._masks)
        heads = np.unique(self._heads[:, 1]).tolist()
        found += [self._reach[u] & self._masks[self._module[u]] for u in heads]
        for t in range(len(self._masks) - 1):
            found += [self._reach[:, v] & self._masks[t] for v in self._outputs[t].tolist()]
        return found

    def bound_s(self, optimum_s: _Optimum) -> float:
        """The larger of both inequalities for every suffix of modules."""
        behind: dict[int, float] = {}

        def from_input(u: int) -> float:
            """At least OPT(dep(u)): its part in the module of u, and then the least that follows."""
            if u not in behind:
                t = int(self._module[u])
                part = self._reach[u] & self._masks[t]
                behind[u] = optimum_s(part) + least_after(t, part, self._reach[u])
            return behind[u]

        def least_after(t: int, part: BoolArray, seen: BoolArray) -> float:
            if not self._all_lead_on(part, t, seen):
                return 0.0
            return min(from_input(u) for u in self.inputs(t, seen).tolist())

        suffix_s = 0.0
        for t in range(len(self._masks) - 1, -1, -1):
            first = optimum_s(self._masks[t]) + least_after(t, self._masks[t], self._masks[t])
            suffix_s = max(first, suffix_s + self._least_before(t, optimum_s))
        return suffix_s

    def _least_before(self, t: int, optimum_s: _Optimum) -> float:
        """What of module t must be over before any later op begins."""
        later = self._later(t + 1)
        if not later.any() or not len(self._outputs[t]):
            return 0.0
        fed = self._reach[np.ix_(self._outputs[t], np.flatnonzero(later))].any(axis=0)
        if not fed.all():
            return 0.0
        return min(optimum_s(self._reach[:, v] & self._masks[t]) for v in self._outputs[t].tolist())
