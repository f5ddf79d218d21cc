"""Solving on torch devices: costs are measured, a method searches on them, and its answer is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hsdag.commands.measured_trace import measured_timeline
from hsdag.commands.place import FINAL_LEAST_S, FINAL_SHARE
from hsdag.commands.profile import tied
from hsdag.ir.errors import OptionError
from hsdag.placers.base import Placer
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.measuring.profiler import Effort
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Links, Order
from hsdag.search.driver import Watcher
from hsdag.search.final import FinalResult, final_comparison
from hsdag.search.options import SolveOptions
from hsdag.search.session import Session
from hsdag.search.solution import Measured, SolveResult
from hsdag.search.solve import solve
from hsdag.search.verifying import check_of

ANSWER = "placement"
"""The name of the answer among what is measured, where it is over several devices."""


@dataclass(frozen=True)
class TorchRun:
    """What is solved beside ``SolveOptions``: devices as ``--devices`` takes them, and fixed shapes of a model.

    ``fresh`` measures costs again that the cache holds, ``with_timeline`` keeps when every op of the answer ran.
    """

    devices: str | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    fresh: bool = False
    with_timeline: bool = False


def solve_on_torch(
    source: Any,
    placer: Placer[Any],
    options: SolveOptions,
    torch_run: TorchRun,
    watcher: Watcher | None = None,
    start_of: Callable[[ScheduleProblem], Plan] | None = None,
) -> SolveResult:
    """Solve the problem of a model, a workload or a problem file with costs that are measured here.

    The answer, which is simulated, is then compared with every single device in measured rounds. Raises OptionError for
    semantics that the engine does not have, and as sessions and ``solve`` do.
    """
    from hsdag.runtime.torch_backend.specs import resolve_torch_devices  # only here: it loads torch

    _check_semantics(options)
    watcher, devices = watcher or Watcher(), resolve_torch_devices(torch_run.devices)
    with Session(
        source, devices, shapes=torch_run.shapes, seed=options.seed, objective=options.objective, executor="cuda"
    ) as session:
        costs = measured_costs(session, watcher, fresh=torch_run.fresh)
        if start_of is not None:
            options = replace(options, start=start_of(costs))
        found = solve(costs, placer, options, watcher)
        if found.device is None:
            return found
        return replace(found, measured=_measured(session, found, watcher, with_timeline=torch_run.with_timeline))


def measured_costs(session: Session, watcher: Watcher, *, fresh: bool = False) -> ScheduleProblem:
    """The problem of a session's ops with measured costs; ops of one unit are tied. Raises DeviceError."""
    cache = ProfileCache(None) if fresh else None
    profile = session.profile(cache, Effort(), watcher.on_phase, watcher.should_stop, side_by_side=True)
    problem = session.problem(profile=profile)
    by_op = OpByOpCosts.of(session.graph, profile.op_by_op_costs(), problem.devices).problem
    records, labels = {record.name: record for record in session.device_records}, session.subject.labels
    return replace(
        tied(by_op, problem.units) if labels is None else replace(by_op, labels=labels),
        memory_bytes=profile.memory_bytes,
        model=session.model_record,
        devices=tuple(records[name] for name in problem.devices),
    )


def _measured(session: Session, found: SolveResult, watcher: Watcher, *, with_timeline: bool) -> Measured:
    """The answer beside every single device, as in every final comparison."""
    watcher.on_phase("comparing the answer with every single device")
    names = [spec.openvino_name for spec in session.devices.placed]
    assert found.device is not None
    on = [names[d] for d in found.device.tolist()]
    ranks = None if found.priority is None else found.priority.tolist()
    objective = found.options.objective
    candidate = Candidate.side_by_side(on, names, ranks, objective, "cuda")
    singles = {spec.name: Candidate.on_device(spec) for spec in session.devices.all}
    finalists = {ANSWER: candidate} if candidate.devices is not None else {}
    result = final_comparison(
        session.runner,
        finalists,
        singles,
        {},
        replace(Protocol(), limit_s=max(FINAL_SHARE * found.options.budget_s, FINAL_LEAST_S)),
        check_of(session),
        rng=np.random.default_rng(found.options.seed),
        should_stop=watcher.should_stop,
        on_step=watcher.on_step,
    )
    shown = {spec.openvino_name: spec.name for spec in session.devices.all}
    name = ANSWER if finalists else shown[candidate.target]
    verdict = result.verdicts.get(name)
    return Measured(
        executor="cuda",
        name=name,
        comparison=result.comparison,
        ratios=result.ratios,
        versus=result.best_single,
        sentence=_sentence(name, result, found.value_s, None if verdict is None else verdict.reason),
        timeline=measured_timeline(session, candidate) if with_timeline else None,
    )


def _sentence(name: str, result: FinalResult, simulated_s: float | None, objection: str | None) -> str:
    """How the answer ``name`` does beside the best single device, and beside what was simulated."""
    if name not in result.comparison.samples:
        return f"The answer has no measured figure: {result.comparison.failures[name]}."
    figure = f"The answer takes {1e3 * result.comparison.median_s(name):.4g} ms as measured"
    if simulated_s is not None:
        figure += f", {1e3 * simulated_s:.4g} ms as simulated"
    if name == result.best_single:
        figure += f"; it is all on {name}, the fastest device"
    elif result.best_single is not None:
        ratio = result.ratios[name]
        figure += (
            f"; it is {ratio.value:.3f} times as fast as the best single device, {result.best_single} "
            f"(95% interval: {ratio.interval_text})"
        )
    return f"{figure}; note that {objection}." if objection else f"{figure}."


def _check_semantics(options: SolveOptions) -> None:
    """Devices of the engine work side by side, on links of their own, in the order of a plan or as inputs arrive."""
    given = options.semantics
    if options.objective.unit != "s":
        raise OptionError(f"--executor cuda measures latency and throughput, not {options.objective.name}")
    if given.execution is not Execution.WORK_CONSERVING or given.links is not Links.INDEPENDENT:
        raise OptionError("--execution and --links do not go with --executor cuda, which has its own")
    if given.order not in (None, Order.PRIORITY, Order.FIFO):
        raise OptionError(f"--order {given.order.value} does not go with --executor cuda; choose priority or fifo")
