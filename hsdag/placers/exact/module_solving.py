"""Module subproblems: solved once for all that are identical, and side by side.

CP-SAT lets go of Python's lock while it searches, so that threads do what processes would, without starting any.
Legend: N ops, D devices.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from hsdag.fleet.job import Exchange, Job
from hsdag.fleet.pool import Pool
from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.formulation import Formulation, generous_horizon_s
from hsdag.placers.exact.solving import POLL_S, solve_model
from hsdag.placers.incumbent import Limits
from hsdag.runtime.problems.bounds import critical_path_s
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

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
