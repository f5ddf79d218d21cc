"""DiviML's recursive lower bound over modules (section IV-B2), for one input or a batch.

Let R be what comes after the first module, M the ops of the module that lead on, b of the G groups of inputs, and c_(b)
the moment when b groups are through M. It is no sooner than OPT(M, b). At least G - b + 1 groups end their last op of M
at c_(b) or later, and all that descends from that op begins after it. The op is one that nothing of M follows, but
which one may differ from group to group, where the paper takes one for all: what descends from all of them is common to
all groups; otherwise one of X ops is the last for a share of 1 / X of the groups. So

OPT(V, G) >= OPT(M, b) + max(OPT(common, G - b + 1), min over x of OPT(behind x, ceil((G - b + 1) / X)))

for every b. And OPT(V, G) >= OPT(R, G) + min over v of OPT(before v, 1), v being the ops of R that read nothing of R.
Both hold in the other direction of time too. Legend: N ops, E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hsdag.ir.graph import BoolArray, IntArray
from hsdag.placers.exact.formulation import Formulation, induced
from hsdag.placers.exact.module_solving import ModuleSolver, ModuleTask

Optimum = Callable[[BoolArray, int], float]
"""From ops [N] and a number of groups to a lower bound of their optimum in seconds."""


def split_bound_s(f: Formulation, parts: Sequence[IntArray], solver: ModuleSolver) -> float:
    """The bound of a problem cut into ``parts``, for one input; all modules are solved side by side."""
    tasks: dict[bytes, ModuleTask] = {}

    def begin(ops: BoolArray, _: int) -> float:
        if ops.tobytes() not in tasks:
            tasks[ops.tobytes()] = solver.submit(induced(f.problem, np.flatnonzero(ops)), {})
        return 0.0

    def module_s(ops: BoolArray, groups: int) -> float:
        begin(ops, groups)
        return tasks[ops.tobytes()].result().bound_s

    recursive_bound_s(f, parts, 1, begin)
    return recursive_bound_s(f, parts, 1, module_s)


def recursive_bound_s(
    f: Formulation,
    parts: Sequence[IntArray],
    groups: int,
    module_s: Optimum,
    any_s: Optimum = lambda _ops, _groups: 0.0,
    has_time: Callable[[], bool] = lambda: True,
) -> float:
    """The larger bound of both directions, of modules ``parts``.

    ``module_s`` bounds ops of one module, ``any_s`` any ops. What no time is left for counts as 0.
    """
    module = np.zeros(f.problem.num_ops, dtype=np.int64)
    for t, part in enumerate(parts):
        module[part] = t
    src, dst = f.problem.edge_src, f.problem.edge_dst
    forward = _Direction(f.reach, module, src, dst, module_s, any_s, has_time)
    backward = _Direction(f.reach.T, len(parts) - 1 - module, dst, src, module_s, any_s, has_time)
    every = np.ones(len(module), dtype=np.bool_)
    return max(forward.bound_s(every, groups), backward.bound_s(every, groups))


@dataclass(frozen=True, eq=False)
class _Direction:
    """The recursion in one direction of time, along which modules are counted and edges lead."""

    reach: BoolArray  # [N, N]
    module: IntArray  # [N]
    src: IntArray  # [E]
    dst: IntArray  # [E]
    module_s: Optimum
    any_s: Optimum
    has_time: Callable[[], bool]
    known: dict[tuple[bytes, int], float] = field(default_factory=dict)

    def bound_s(self, ops: BoolArray, groups: int) -> float:
        key = ops.tobytes(), groups
        if key not in self.known:
            self.known[key] = self._compute(ops, groups) if self.has_time() else 0.0
        return self.known[key]

    def _compute(self, ops: BoolArray, groups: int) -> float:
        whole = self.module == self.module[ops].min()
        first, rest = ops & whole, ops & ~whole
        best_s = max(self.any_s(ops, groups), self.module_s(first, groups))
        if not rest.any():
            return best_s
        if np.array_equal(first, whole):  # of parts of modules it would ask for too many other parts
            best_s = max(best_s, self.bound_s(rest, groups) + self._least_before(first, rest))
        leads = np.flatnonzero(first)[self.reach[first][:, rest].any(axis=1)]
        if not len(leads):
            return best_s
        through = np.zeros_like(first)
        through[leads] = True
        last = leads[~self.reach[np.ix_(leads, leads)].any(axis=1)]
        behind = self.reach[last] & rest
        common = behind.all(axis=0)
        for b in range(1, groups + 1):
            left = groups - b + 1
            if common.any() and groups > 1:
                later_s = self.bound_s(common, left)
            else:
                later_s = min(self.bound_s(row, -(-left // len(last))) for row in behind)
            best_s = max(best_s, self.module_s(through, b) + later_s)
        return best_s

    def _least_before(self, first: BoolArray, rest: BoolArray) -> float:
        """What of the first module comes before any of the rest, of one group at least."""
        entries = rest.copy()
        entries[self.dst[rest[self.src] & rest[self.dst]]] = False
        before = self.reach[:, entries].T & first
        return min(self.module_s(row, 1) for row in before) if before.any(axis=1).all() else 0.0
