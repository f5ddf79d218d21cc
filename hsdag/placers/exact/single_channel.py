"""Single-channel modules: optimal schedules by dynamic programming over the devices of pivots (DiviML, IV-B1).

Legend: N ops, D devices, T segments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.exact.formulation import Formulation, induced
from hsdag.placers.exact.module_solving import ModuleAnswer, ModuleSolver, ModuleTask
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

Key = tuple[int, int]


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
    parts = segments(f, pivots)
    p = f.problem
    tasks = [_tasks(p, part, solver) for part in parts]
    answers = [
        {key: task if isinstance(task, ModuleAnswer) else task.result() for key, task in of.items()} for of in tasks
    ]
    bounds, values = np.zeros(p.num_devices), np.zeros(p.num_devices)
    froms: list[dict[int, int]] = []
    for answer in answers:
        bounds, _ = _step(bounds, {key: a.bound_s for key, a in answer.items()}, p.num_devices)
        values, came = _step(values, {key: a.value_s for key, a in answer.items()}, p.num_devices)
        froms.append(came)
    value_s = float(values.min())
    if not np.isfinite(value_s):
        return ModuleAnswer(float(bounds.min()), value_s)
    return _assemble(p, parts, answers, froms, int(np.argmin(values)), float(bounds.min()), value_s)


def _step(before: FloatArray, cost: dict[Key, float], num_devices: int) -> tuple[FloatArray, dict[int, int]]:
    """One step of the recursion; a missing end (device -1) is free."""
    after, came = np.full(num_devices, np.inf), {}
    for (u, v), seconds in sorted(cost.items()):
        total = (before[u] if u >= 0 else before.min()) + seconds
        for w in range(num_devices) if v < 0 else (v,):
            if total < after[w]:
                after[w], came[w] = total, u
    return after, came


def _tasks(p: ScheduleProblem, part: Segment, solver: ModuleSolver) -> dict[Key, ModuleTask | ModuleAnswer]:
    entries = np.flatnonzero(p.supported[part.entry]).tolist() if part.entry >= 0 else [-1]
    exits = np.flatnonzero(p.supported[part.exit]).tolist() if part.exit >= 0 else [-1]
    found: dict[Key, ModuleTask | ModuleAnswer] = {}
    module = None
    for u in entries:
        for v in exits:
            if len(part.ops) == 1 and part.exit >= 0:
                found[u, v] = _bridge(p, part, u, v)
                continue
            if module is None:
                module = _with_entry(p, part)
            shift = int(part.entry >= 0)
            pinned = {0: u} if shift else {}
            if part.exit >= 0:
                pinned[shift + int(np.flatnonzero(part.ops == part.exit)[0])] = v
            found[u, v] = solver.submit(module, pinned)
    return found


def _bridge(p: ScheduleProblem, part: Segment, u: int, v: int) -> ModuleAnswer:
    """A segment of one op: the transfer and the op."""
    sent_s = 0.0
    if u >= 0:
        size = max(p.edge_bytes[(p.edge_src == part.entry) & (p.edge_dst == part.exit)].tolist(), default=0.0)
        sent_s = float(Formulation(p).transfer_s(size)[u, v])
    value_s = sent_s + float(p.time_s[part.exit, v])
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


def _assemble(
    p: ScheduleProblem,
    parts: list[Segment],
    answers: list[dict[Key, ModuleAnswer]],
    froms: list[dict[int, int]],
    last: int,
    bound_s: float,
    value_s: float,
) -> ModuleAnswer:
    """Back along the recursion."""
    device, start_s = np.zeros(p.num_ops, dtype=np.int64), np.zeros(p.num_ops)
    segment = np.zeros(p.num_ops, dtype=np.int64)
    for t in range(len(parts) - 1, -1, -1):
        part, u = parts[t], froms[t][last]
        answer = answers[t][u, last if part.exit >= 0 else -1]
        assert answer.device is not None
        assert answer.start_s is not None
        shift = len(answer.device) - len(part.ops)
        device[part.ops], start_s[part.ops] = answer.device[shift:], answer.start_s[shift:]
        segment[part.ops] = t
        last = u
    return ModuleAnswer(bound_s, value_s, device, segment * (start_s.max() + 1.0) + start_s)
