"""Single-channel modules: optimal schedules by dynamic programming over the devices of pivots (DiviML, IV-B1).

Legend: N ops, D devices, T segments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hsdag.ir.graph import IntArray
from hsdag.placers.exact.formulation import Formulation, induced
from hsdag.placers.exact.module_solving import ModuleAnswer, ModuleSolver
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


@dataclass(frozen=True, eq=False)
class Segment:
    """What lies between two pivots: ``entry`` (-1 at the beginning), the ops behind it, and ``exit`` (-1 at the end).

    The entry comes again as a dummy of no duration that leads the ops, on the device of the pivot: a zero-cost edge
    with both ends on one device. A bridge is a segment whose only op is its exit.
    """

    entry: int
    ops: IntArray
    exit: int


def segments(f: Formulation, pivots: list[int]) -> list[Segment]:
    """The graph cut behind each pivot."""
    before = f.reach.sum(axis=0)
    found, behind = [], -1
    for o in pivots:
        inside = (before <= before[o]) & (f.reach[behind] if behind >= 0 else True)
        found.append(Segment(behind, np.flatnonzero(inside), o))
        behind = o
    rest = np.flatnonzero(f.reach[behind]) if behind >= 0 else np.arange(f.problem.num_ops)
    if len(rest):
        found.append(Segment(behind, rest, -1))
    return found


def solve_chain(f: Formulation, pivots: list[int], solver: ModuleSolver) -> ModuleAnswer:
    """dp(M_t, v) = min_u dp(M_{t-1}, u) + OPT(M_t, u, v): every segment for every pair of devices of its ends.

    OPT counts from the end of the entry to that of the exit, transfers from the entry included, which are com(v', u)
    of the paper. Starts put segments behind one another, with room to spare. The value is optimal where all modules
    are and ops have no overheads, which may last into the next.
    """
    p, parts = f.problem, segments(f, pivots)
    tasks = [_tasks(f, part, solver) for part in parts]
    answers = [[[result() for result in row] for row in of] for of in tasks]
    bounds, values, came = np.zeros(1), np.zeros(1), []
    for answer in answers:
        bounds = (bounds[:, None] + [[each.bound_s for each in row] for row in answer]).min(axis=0)
        totals = values[:, None] + [[each.value_s for each in row] for row in answer]
        values = totals.min(axis=0)
        came.append(totals.argmin(axis=0))
    bound_s, value_s, last = float(bounds.min()), float(values.min()), int(values.argmin())
    if not np.isfinite(value_s):
        return ModuleAnswer(bound_s, value_s)
    device, start_s, segment = np.zeros(p.num_ops, dtype=np.int64), np.zeros(p.num_ops), np.zeros(p.num_ops)
    for t, part in reversed(list(enumerate(parts))):
        first = int(came[t][last])
        best = answers[t][first][last]
        assert best.device is not None
        assert best.start_s is not None
        own = slice(len(best.device) - len(part.ops), None)
        device[part.ops], start_s[part.ops], segment[part.ops] = best.device[own], best.start_s[own], t
        last = first
    return ModuleAnswer(bound_s, value_s, device, segment * (start_s.max() + 1.0) + start_s)


def _tasks(f: Formulation, part: Segment, solver: ModuleSolver) -> list[list[Callable[[], ModuleAnswer]]]:
    """What waits for the answer: a row for every device of the entry, a column for every device of the exit."""
    p = f.problem
    entries, exits = (np.flatnonzero(p.supported[v]).tolist() if v >= 0 else [-1] for v in (part.entry, part.exit))
    if len(part.ops) == 1 and part.exit >= 0:
        return [[partial(_bridge, f, part, u, v) for v in exits] for u in entries]
    module, at_entry = _with_entry(p, part), int(part.entry >= 0)
    at_exit = at_entry + int(np.flatnonzero(part.ops == part.exit).sum())
    pins = [[{i: d for i, d in ((0, u), (at_exit, v)) if d >= 0} for v in exits] for u in entries]
    return [[solver.submit(module, pinned).result for pinned in row] for row in pins]


def _bridge(f: Formulation, part: Segment, u: int, v: int) -> ModuleAnswer:
    """A segment of one op: the transfer and the op."""
    sent_s = float(f.transfer_s(f.edges.get((part.entry, part.exit), 0.0))[u, v]) if u >= 0 else 0.0
    value_s = sent_s + float(f.problem.time_s[part.exit, v])
    return ModuleAnswer(value_s, value_s, np.array([v]), np.array([sent_s]))


def _with_entry(p: ScheduleProblem, part: Segment) -> ScheduleProblem:
    """The ops of a segment as a problem; the entry, of no duration and weight, is op 0 of it."""
    if part.entry < 0:
        return induced(p, part.ops)
    module = induced(p, np.concatenate([[part.entry], part.ops]))
    time_s, weight_bytes = module.time_s.copy(), module.weight_bytes.copy()
    time_s[0] = np.where(np.isnan(time_s[0]), np.nan, 0.0)
    weight_bytes[0] = 0.0
    return replace(module, time_s=time_s, weight_bytes=weight_bytes)
