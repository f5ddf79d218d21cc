"""DiviML's modules: where a graph splits, how modules are solved side by side and joined, and the recursive bound.

With a single channel, dynamic programming over the devices of pivots joins modules (section IV-B1). The bound (IV-B2),
for one input: let R be what comes after the first module and M the ops of the module that lead on. All that descends
from the last op of M to end begins after OPT(M); which one is the last is not known: OPT(V) >= OPT(M) + min over x of
OPT(behind x), x being the ops that nothing of M follows. And OPT(V) >= OPT(R) + min over v of OPT(before v), v being
the ops of R that read nothing of R. Both hold in the other direction of time too. CP-SAT lets go of Python's lock while
it searches, so that threads do what processes would. Legend: N ops, E edges, D devices, T segments.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.ir.graph.partition import Partition
from hsdag.methods.exact.cpsat_model import IntervalModel
from hsdag.methods.exact.formulation import Formulation, generous_horizon_s, induced
from hsdag.methods.exact.solving import POLL_S, solve_model
from hsdag.methods.incumbent import Limits
from hsdag.runtime.problem.bounds import critical_path_s
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.workers.pool import Exchange, Job, Pool

FLOWS_UP_TO = 400
"""Ops up to which k-edge-connected components are computed: one maximum flow for each."""


@dataclass(frozen=True)
class CutRules:
    """How modules should be. Raises OptionError for no channels or no ops."""

    most_channels: int = 4
    """Results that cross a cut at most, but where no other cut is found."""
    usual_ops: int = 16
    """Ops of a module from which on the narrowest cut is looked for,"""
    most_ops: int = 40
    """and up to which."""

    def __post_init__(self) -> None:
        if self.most_channels < 1 or not 1 <= self.usual_ops <= self.most_ops:
            raise OptionError("modules take most_channels of at least 1, and 1 <= usual_ops <= most_ops")


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
    found = []
    for o in comparable[np.argsort(num_before[comparable], kind="stable")].tolist():
        k = int(num_before[o])
        if k == 0 or furthest[k - 1] <= k:
            found.append(o)
    return found


def edge_connected_components(num_ops: int, edges: list[tuple[int, int]], k: int) -> IntArray:
    """[N] component of each op: two ops share one where no cut of fewer than k edges parts them (undirected).

    By the flows of Gusfield's equivalent tree (SIAM J. Comput. 19(1), 1990): N - 1 maximum flows.
    """
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    capacity = csr_array((np.ones(len(both), dtype=np.int32), (both[:, 0], both[:, 1])), shape=(num_ops, num_ops))
    capacity.sum_duplicates()
    parent, flow = np.zeros(num_ops, dtype=np.int64), np.zeros(num_ops, dtype=np.int64)
    for s in range(1, num_ops):
        result = maximum_flow(capacity, s, int(parent[s]))
        flow[s] = result.flow_value
        residual = csr_array(capacity - result.flow)
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        side = breadth_first_order(residual, s, return_predecessors=False)
        later = side[side > s]
        parent[later[parent[later] == parent[s]]] = s
    kept = np.flatnonzero(flow[1:] >= k) + 1
    tree = csr_array((np.ones(len(kept)), (kept, parent[kept])), shape=(num_ops, num_ops))
    return np.asarray(connected_components(tree, directed=False)[1], dtype=np.int64)


def modules(f: Formulation, rules: CutRules | None = None) -> list[IntArray]:
    """The ops as a sequence of modules: edges lead forward, and few results cross from one to the next.

    Ops that no thin cut can part (k-edge-connected, k one more than the channels) are one; what is left is laid out
    in a line, always taking on what keeps the fewest results open, and cut where few cross, at usual sizes.
    """
    rules = rules or CutRules()
    n, edges = f.problem.num_ops, list(f.edges)
    block = np.arange(n)
    if 2 < n <= FLOWS_UP_TO and edges:
        block = edge_connected_components(n, edges, rules.most_channels + 1)
    block = _without_cycles(edges, block, rules.most_ops)
    line = _line(f, block)
    ends = np.flatnonzero(np.append(block[line][1:] != block[line][:-1], True)) + 1
    return _cut(line, ends.tolist(), _crossing(f, line), rules)


def _without_cycles(edges: list[tuple[int, int]], block: IntArray, most_ops: int) -> IntArray:
    """Blocks whose quotient has no cycles; those too large for a module are given up."""
    blocks, pairs = Partition.from_labels(block), np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    merged = Partition.from_labels(blocks.cycles(pairs[:, 0], pairs[:, 1])[blocks.labels]).labels
    return merged if np.bincount(merged).max(initial=0) <= most_ops else np.arange(len(block))


def _line(f: Formulation, block: IntArray) -> IntArray:
    """All ops in a topological order that goes block by block and keeps few results open."""
    n = f.problem.num_ops
    position = inverse_of(f.problem.topological_order)
    members: list[list[int]] = [[] for _ in range(int(block.max()) + 1)] if n else []
    for v in f.problem.topological_order.tolist():
        members[block[v]].append(v)
    inputs: list[set[int]] = [set() for _ in members]  # ops of other blocks that a block reads
    readers: dict[int, set[int]] = {}
    for u, v in f.edges:
        if block[u] != block[v]:
            inputs[block[v]].add(u)
            readers.setdefault(u, set()).add(int(block[v]))
    waiting = [len(needed) for needed in inputs]
    left = {u: len(blocks) for u, blocks in readers.items()}
    ready = [b for b, w in enumerate(waiting) if not w]
    line: list[int] = []
    laid: dict[int, int] = {}

    def rank(b: int) -> tuple[int, int, int]:
        opened = sum(u in readers for u in members[b]) - sum(left[u] == 1 for u in inputs[b])
        return opened, -max((laid[u] for u in inputs[b]), default=-1), int(position[members[b][0]])

    while ready:
        b = min(ready, key=rank)
        ready.remove(b)
        for u in members[b]:
            laid[u] = len(line)
            line.append(u)
        for u in inputs[b]:
            left[u] -= 1
        for u in members[b]:
            for c in sorted(readers.get(u, ())):
                waiting[c] -= 1
                if not waiting[c]:
                    ready.append(c)
    return np.asarray(line, dtype=np.int64)


def _crossing(f: Formulation, line: IntArray) -> FloatArray:
    """[N + 1] results that cross before each place of a line."""
    p, n, place = f.problem, len(line), inverse_of(line)
    last = np.full(n, -1, dtype=np.int64)
    np.maximum.at(last, p.edge_src, place[p.edge_dst])
    begins, ends = place[last >= 0] + 1, last[last >= 0] + 1
    change = np.bincount(begins, minlength=n + 1) - np.bincount(ends, minlength=n + 1)
    return np.asarray(np.cumsum(change)[: n + 1], dtype=np.float64)


def _cut(line: IntArray, ends: list[int], crossing: FloatArray, rules: CutRules) -> list[IntArray]:
    """The cheapest cuts: a cut costs the square of what crosses, a module that of its size beyond the usual one."""
    at = [0, *ends]
    cheapest, previous = [0.0] + [np.inf] * len(ends), [0] * len(at)
    for j in range(1, len(at)):
        for i in range(j - 1, -1, -1):
            size = at[j] - at[i]
            if size > rules.most_ops and i < j - 1:
                break
            thick = max(crossing[at[j]] - rules.most_channels, 0.0) * 10
            cost = cheapest[i] + 4 * max(size / rules.usual_ops, 1.0) ** 2 + crossing[at[j]] ** 2 + thick
            if cost < cheapest[j]:
                cheapest[j], previous[j] = cost, i
    found, j = [], len(at) - 1
    while j:
        found.append(line[at[previous[j]] : at[j]])
        j = previous[j]
    return found[::-1]


GRACE_S = 1.0
"""What workers may take beyond the deadline until nobody waits for them any more."""


@dataclass(frozen=True, eq=False)
class ModuleAnswer:
    """The best schedule of a module, if one was found, and what no schedule of it beats."""

    bound_s: float
    value_s: float = float("inf")
    device: IntArray | None = None  # [N]
    start_s: FloatArray | None = None  # [N]

    def of_ops(self, ops: IntArray) -> ModuleAnswer:
        """The same with ops in another order."""
        if self.device is None or self.start_s is None:
            return self
        return replace(self, device=self.device[ops], start_s=self.start_s[ops])


class ModuleSolver(AbstractContextManager["ModuleSolver"]):
    """Solves modules of one problem; ``num_solved`` counts those that were not known already.

    What is not begun before ``deadline``, a moment of time.monotonic(), gets the longest path for a bound. Who waits
    for an answer calls ``on_wait`` every so often, and may be ended by what it raises. With a ``pool``, its workers
    solve the modules in place of threads; what they have not solved by the deadline gets the longest path, too.
    """

    def __init__(
        self,
        limits: Limits,
        num_threads: int = 2,
        *,
        deadline: float = np.inf,
        on_wait: Callable[[], None] = lambda: None,
        pool: Pool | None = None,
    ) -> None:
        self._limits, self._deadline, self._on_wait = limits, deadline, on_wait
        self._threads, self._pool = ThreadPoolExecutor(num_threads), pool
        self._known: dict[bytes, Future[ModuleAnswer]] = {}
        self.num_solved = 0

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for future in self._known.values():
            future.cancel()

    def submit(self, module: ScheduleProblem, pinned: dict[int, int]) -> ModuleTask:
        """Begin to solve a module with some ops pinned to devices."""
        order = canonical_order(module, pinned)
        key = identity(module, pinned, order)
        if key not in self._known:
            self.num_solved += 1
            self._known[key] = self._begun(ModuleJob(module, pinned, order, self._limits))
        return ModuleTask(self._known[key], module, order, self._on_wait, self._deadline)

    def _begun(self, job: ModuleJob) -> Future[ModuleAnswer]:
        if self._pool is None:
            return self._threads.submit(lambda: job.solved(self._deadline - time.monotonic()))
        left_s = self._deadline - time.monotonic()
        return self._pool.submit(replace(job, limits=replace(job.limits, seconds=min(job.limits.seconds, left_s))))


@dataclass(frozen=True, eq=False)
class ModuleJob(Job[ModuleAnswer]):
    """A module with some ops pinned to devices, and their canonical order."""

    module: ScheduleProblem
    pinned: dict[int, int]
    order: IntArray
    limits: Limits

    def run(self, exchange: Exchange) -> ModuleAnswer:  # noqa: ARG002
        """The answer on a worker."""
        return self.solved(self.limits.seconds)

    def solved(self, left_s: float) -> ModuleAnswer:
        """The answer within so many seconds, with ops in canonical order."""
        if any(np.isnan(self.module.time_s[i, d]) for i, d in self.pinned.items()):
            return ModuleAnswer(float("inf"))
        if left_s <= 0:
            return ModuleAnswer(critical_path_s(self.module))
        limits = replace(self.limits, seconds=min(self.limits.seconds, left_s))
        return _by_cpsat(self.module, self.pinned, limits).of_ops(self.order)


@dataclass(frozen=True, eq=False)
class ModuleTask:
    """A module that is being solved."""

    future: Future[ModuleAnswer]
    module: ScheduleProblem
    order: IntArray  # [N] its ops in canonical order
    on_wait: Callable[[], None]
    deadline: float

    def result(self) -> ModuleAnswer:
        """Wait for the answer, with ops as they were given."""
        while not wait([self.future], POLL_S).done:
            self.on_wait()
            if time.monotonic() > self.deadline + GRACE_S and self.future.cancel():
                break  # ``wait`` does not count it as done
        if self.future.cancelled():
            return ModuleAnswer(critical_path_s(self.module))
        return self.future.result().of_ops(inverse_of(self.order))


def _by_cpsat(module: ScheduleProblem, pinned: dict[int, int], limits: Limits) -> ModuleAnswer:
    model = IntervalModel(Formulation(module), generous_horizon_s(module), pinned=pinned)
    answer = solve_model(model, limits)
    bound_s = answer.bound * model.ticks.length_s
    if answer.solution is None or answer.value is None:
        return ModuleAnswer(bound_s)
    return ModuleAnswer(bound_s, answer.value * model.ticks.length_s, *answer.solution.of_single)


def canonical_order(module: ScheduleProblem, pinned: dict[int, int]) -> IntArray:
    """[N] ops in an order that does not depend on their names: by colours refined along edges (Weisfeiler-Leman)."""
    f = Formulation(module)
    n = module.num_ops
    own = [
        _digest(module.time_s[i].tobytes(), module.output_bytes[i : i + 1].tobytes(),
                module.weight_bytes[i : i + 1].tobytes(), str(pinned.get(i)).encode())
        for i in range(n)
    ]  # fmt: skip
    for _ in range(min(n, 8)):
        seen: list[list[bytes]] = [[] for _ in range(n)]
        for (u, v), size in f.edges.items():
            seen[u].append(b">" + own[v] + np.float64(size).tobytes())
            seen[v].append(b"<" + own[u] + np.float64(size).tobytes())
        own = [_digest(own[i], *sorted(seen[i])) for i in range(n)]
    position = np.argsort(module.topological_order, kind="stable")
    return np.asarray(sorted(range(n), key=lambda i: (own[i], position[i])), dtype=np.int64)


def identity(module: ScheduleProblem, pinned: dict[int, int], order: IntArray) -> bytes:
    """Equal for modules that are the same problem when their ops are put in canonical order, and for no others."""
    place = np.argsort(order)
    edges = np.stack([place[module.edge_src], place[module.edge_dst]], axis=1)
    rows = np.lexsort((module.edge_bytes, edges[:, 1], edges[:, 0])) if len(edges) else np.zeros(0, dtype=np.int64)
    pins = np.array([pinned.get(i, -1) for i in order.tolist()], dtype=np.int64)
    parts: Sequence[np.ndarray] = (
        module.time_s[order], module.output_bytes[order], module.weight_bytes[order], edges[rows],
        module.edge_bytes[rows], module.link_latency_s, module.link_bandwidth_bytes_per_s, module.memory_bytes,
        np.array([module.op_overhead_s]), pins,
    )  # fmt: skip
    return _digest(*(np.ascontiguousarray(part).tobytes() + str(part.shape).encode() for part in parts))


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"|".join(parts)).digest()


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
