"""Runs: whole searches of which nothing is kept but their figures, here or on workers; every figure is simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from platform import node

from hsdag.ir.errors import ExecutionError, HsdagError
from hsdag.ir.placement.placement import Record
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve
from hsdag.workers.pool import Exchange, Findings, Job, Pool

LOOK_EVERY_S = 0.25
"""How often it is asked whether a search has to end."""


class Run(Record):
    """One search: its value in seconds, None where it failed or found nothing, and then why."""

    method: str
    seed: int
    value_s: float | None = None
    lower_bound_s: float = 0.0
    evaluations: int = 0
    elapsed_s: float
    best_after_s: float = 0.0
    status: str = "failed"
    failure: str | None = None
    host: str | None = None
    """The machine whose worker searched; None for the process that compares."""


def run_once(problem: ScheduleProblem, options: SolveOptions, watcher: Watcher | None = None) -> Run:
    """One search, whose failure is an answer too; phases of the search are told as steps."""
    watcher, begin_s = watcher or Watcher(), time.monotonic()
    try:
        found = solve(problem, options.placer(), options, replace(watcher, on_phase=watcher.on_step, on_note=None))
    except (HsdagError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):  # torch has no class for it on a CPU
            raise
        reason, elapsed_s = str(error) if isinstance(error, HsdagError) else "out of memory", time.monotonic() - begin_s
        return Run(method=options.method, seed=options.seed, elapsed_s=elapsed_s, failure=reason)
    nothing = "" if found.value_s is not None else f"no placement found. {found.status.sentence}"
    failure = found.note or nothing or None  # a method that gave up has the best single device, which is not its own
    return Run(
        method=options.method,
        seed=options.seed,
        value_s=found.value_s if failure is None else None,
        lower_bound_s=found.lower_bound_s,
        evaluations=found.num_evaluations,
        elapsed_s=found.elapsed_s,
        best_after_s=found.best_after_s,
        status=found.status.value,
        failure=failure,
    )


@dataclass(frozen=True, eq=False)
class SearchJob(Job[Run]):
    """A search on a worker."""

    problem: ScheduleProblem
    options: SolveOptions

    def run(self, exchange: Exchange) -> Run:
        """The search's figures, and where it was."""
        asked_s, is_over = time.monotonic(), False

        def should_stop() -> bool:
            nonlocal asked_s, is_over
            if time.monotonic() - asked_s > LOOK_EVERY_S:
                asked_s, is_over = time.monotonic(), exchange(Findings()).is_over
            return is_over

        found = run_once(self.problem, self.options, Watcher(should_stop=should_stop))
        return found.model_copy(update={"host": node()})


def runs_of(
    problem: ScheduleProblem, searches: Sequence[SolveOptions], watcher: Watcher, pool: Pool | None
) -> Iterator[Run]:
    """Searches as they end, until the watcher wants no more; a search that was interrupted is left out.

    Without a pool they run in this process, in their order; with one each of them has one processor to itself.
    """
    if pool is None:
        for number, options in enumerate(searches, start=1):
            watcher.on_phase(f"{options.method}, seed {options.seed}: run {number} of {len(searches)}")
            run = run_once(problem, options, watcher)
            if watcher.should_stop():
                return
            yield run
        return
    pool.begin()
    running: dict[Future[Run], SolveOptions] = {}
    for options in searches:
        running[pool.submit(SearchJob(problem, replace(options, workers=None, num_threads=1)))] = options
    try:
        while running:
            ended = len(searches) - len(running)
            watcher.on_phase(f"{ended} of {len(searches)} runs on {pool.num_workers} workers")
            for future in wait(running, LOOK_EVERY_S, FIRST_COMPLETED).done:
                yield _run_of(future, running.pop(future))
            if watcher.should_stop():
                return
    finally:
        pool.exchange(Findings(is_over=True))
        for future in running:
            future.cancel()


def _run_of(future: Future[Run], options: SolveOptions) -> Run:
    """What a worker answered, or that the search cost several of them."""
    try:
        return future.result()
    except ExecutionError as error:
        return Run(method=options.method, seed=options.seed, elapsed_s=0.0, failure=str(error))
