"""MilpSplitPlacer: DiviML's MILP-SPLIT, the modules of a graph with one channel solved on their own and joined.

Modules are solved side by side, and dynamic programming over the devices of pivots joins them (section IV-B1). CP-SAT
lets go of Python's lock while it searches, so that threads do what processes would. Legend: N ops, D devices.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.base import NoOptions
from hsdag.methods.exact.base import ExactSearch
from hsdag.methods.exact.cpsat import CpSatMethod, IntervalModel
from hsdag.methods.exact.formulation import Formulation, generous_horizon_s, induced
from hsdag.methods.exact.solving import POLL_S, solve_model
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.bounds.simple import critical_path_s
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


def pivots(f: Formulation) -> list[int]:
    """Ops behind which the graph is cut by one channel, in order.

    Such an op is an ancestor or a descendant of every other, and every edge from before it to behind it begins at it:
    an articulation point, or the head of a bridge, of a graph all of whose paths go through it.
    """
    n = f.problem.num_ops
    num_before = f.reach.sum(axis=0)
    comparable = np.flatnonzero(num_before + f.reach.sum(axis=1) == n - 1)
    farthest = np.zeros(n + 1, dtype=np.int64)  # by number of ancestors: how far edges from there lead
    np.maximum.at(farthest, num_before[f.problem.edge_src], num_before[f.problem.edge_dst])
    furthest = np.maximum.accumulate(farthest)
    ordered = comparable[np.argsort(num_before[comparable], kind="stable")].tolist()
    return [o for o in ordered if num_before[o] == 0 or furthest[num_before[o] - 1] <= num_before[o]]


@dataclass(frozen=True, eq=False)
class ModuleAnswer:
    """The best schedule of a module, if one was found, and what no schedule of it beats."""

    bound_s: float
    value_s: float = float("inf")
    device: IntArray | None = None  # [N]
    start_s: FloatArray | None = None  # [N]


@dataclass(eq=False)
class ModuleSolver(AbstractContextManager["ModuleSolver"]):
    """Solves modules of one problem on threads, equal ones once.

    What is not begun before ``deadline``, a moment of time.monotonic(), gets the longest path for a bound. Who waits
    for an answer calls ``on_wait`` every so often, and may be ended by what it raises.
    """

    limits: Limits
    num_threads: int = 2
    deadline: float = np.inf
    on_wait: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(self.num_threads)
        self._known: dict[bytes, Future[ModuleAnswer]] = {}

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def submit(self, module: ScheduleProblem, pinned: dict[int, int]) -> Callable[[], ModuleAnswer]:
        """Begin to solve a module with some ops pinned to devices; what waits for the answer."""
        if (key := _identity(module, pinned)) not in self._known:
            self._known[key] = self._threads.submit(self._solved, module, pinned)
        return partial(self._answer, self._known[key])

    def _answer(self, future: Future[ModuleAnswer]) -> ModuleAnswer:
        while not wait([future], POLL_S).done:
            self.on_wait()
        return future.result()

    def _solved(self, module: ScheduleProblem, pinned: dict[int, int]) -> ModuleAnswer:
        if any(np.isnan(module.time_s[i, d]) for i, d in pinned.items()):
            return ModuleAnswer(float("inf"))
        if (left_s := self.deadline - time.monotonic()) <= 0:
            return ModuleAnswer(critical_path_s(module))
        model = IntervalModel(Formulation(module), generous_horizon_s(module), pinned=pinned)
        answer = solve_model(model, replace(self.limits, seconds=min(self.limits.seconds, left_s)))
        tick_s = model.ticks.length_s
        if answer.solution is None or answer.value is None:
            return ModuleAnswer(answer.bound * tick_s)
        return ModuleAnswer(answer.bound * tick_s, answer.value * tick_s, *answer.solution)


def _identity(module: ScheduleProblem, pinned: dict[int, int]) -> bytes:
    """Equal for modules that are the same problem, op by op, and for no others."""
    rows = np.lexsort((module.edge_bytes, module.edge_dst, module.edge_src))
    parts = (
        module.time_s, module.output_bytes, module.weight_bytes, module.edge_src[rows], module.edge_dst[rows],
        module.edge_bytes[rows], module.edge_port[rows], module.link_latency_s, module.link_bandwidth_bytes_per_s,
        module.memory_bytes, np.array([module.op_overhead_s]), np.array(sorted(pinned.items())),
    )  # fmt: skip
    return hashlib.sha256(b"|".join(part.tobytes() + str(part.shape).encode() for part in parts)).digest()


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
    found = []
    behind = -1
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
    p = f.problem
    parts = segments(f, pivots)
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
    module = _with_entry(p, part)
    at_exit = int(part.entry >= 0) + int(np.flatnonzero(part.ops == part.exit).sum())
    pins = [[{i: d for i, d in ((0, u), (at_exit, v)) if d >= 0} for v in exits] for u in entries]
    return [[solver.submit(module, pinned) for pinned in row] for row in pins]


def _bridge(f: Formulation, part: Segment, u: int, v: int) -> ModuleAnswer:
    """A segment of one op: the transfer and the op."""
    sent_s = float(f.transfer_s(f.consumers[part.entry].get(part.exit, 0.0))[u, v]) if u >= 0 else 0.0
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


MOST_OPS_OF_A_SEGMENT = 120
"""Up to which every segment between pivots is solved for all devices of its ends."""
FEW_OPS_OF_A_SEGMENT = 48
"""Beyond which annealing and windows come first, for segments take long."""
MODULE_S, LEAST_S = 5.0, 0.2
"""What one module may take, and gets at least."""
SHARE_OF_ANNEALING = 0.4
"""Of the time that is left when windows begin: a plan far from a good one takes them many sweeps."""


class MilpSplitPlacer(CpSatMethod[NoOptions]):
    """Work-conserving latency by modules; objectives without an order have no modules, and are solved whole.

    One channel: dynamic programming over pivots. Several, or large modules: windows over modules and seams are searched
    again, side by side, while that helps, from what annealing finds.
    """

    name = "milp-split"
    argument = "modules solved one by one"

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        for method in ("sa", "windows"):
            make_placer(method).prepare(problem, takes_order=takes_order)

    def _latency(self, search: ExactSearch) -> None:
        """Solve module by module."""
        formulation, limits = search.formulation, search.incumbent.limits
        found = pivots(formulation)
        gaps = np.diff([0, *(int(formulation.reach[:, o].sum()) + 1 for o in found), formulation.problem.num_ops])
        if gaps.max() > FEW_OPS_OF_A_SEGMENT:
            _join(search)
        if gaps.max() > MOST_OPS_OF_A_SEGMENT:
            return
        left_s = search.left_s()
        share_s = left_s * limits.num_workers / (len(gaps) * formulation.problem.num_devices**2)
        of_module = Limits(min(MODULE_S, max(share_s, LEAST_S), left_s), 1, limits.seed)
        with ModuleSolver(of_module, limits.num_workers, deadline=search.deadline, on_wait=search.wake) as solver:
            answer = solve_chain(formulation, found, solver)
        if answer.device is not None and answer.start_s is not None:
            search.consider(answer.device, answer.start_s)
        search.prove(answer.bound_s)


def _join(search: ExactSearch) -> None:
    """Annealing from the best list schedule, then windows of that over modules and seams."""
    incumbent = search.incumbent
    for method, share in (("sa", SHARE_OF_ANNEALING), ("windows", 1.0)):
        known = incumbent.limits.known if incumbent.best is None else (incumbent.best,)
        limits = replace(incumbent.limits, seconds=share * search.left_s(), known=known, pool=None)
        make_placer(method).search(incumbent.problem, incumbent, limits)
