"""The timelines of a search's answer, simulated and measured, and what runs each op. Legend: N ops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.ir.errors import FileFormatError
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.placement.placement import Placement
from hsdag.placing.run_folder import RunFolder
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.executor.compiling import task_graph
from hsdag.runtime.executor.merging import plan_cut
from hsdag.runtime.problem.semantics import Execution, Order, Semantics
from hsdag.runtime.simulator.simulation import simulate
from hsdag.runtime.timeline import OpIntervals, Timeline


def timelines_of(run: RunFolder) -> list[Timeline]:
    """The simulated timeline of the answer and the measured one, as far as they are there.

    Raises FileFormatError where the measured one is damaged.
    """
    found = [] if run.placement is None else [simulated_timeline(run, run.placement)]
    if run.result is not None and run.result.timeline is not None:
        try:
            found.append(run.result.timeline.timeline())
        except ValueError as error:
            raise FileFormatError(f"{run.path}: the timeline of the result is damaged: {error}") from error
    return [timeline for timeline in found if timeline is not None]


def simulated_timeline(run: RunFolder, placement: Placement) -> Timeline | None:
    """One inference of a placement as its executor would run it: part by part side by side, else op by op.

    None where nothing was profiled, or the placement has other devices than were searched over.
    """
    plan = run.plan_of(placement)
    if run.costs is None or plan is None:
        return None
    device = run.problem.expand(plan.placement)
    ranks = None if plan.order is None else run.problem.expand(plan.order)
    if isinstance(run.costs, WorkConservingCosts) and len(placement.used_devices) > 1:
        return _of_parts(run, run.costs, device, ranks)
    return _of_ops(run, device, ranks)


def submodels_of(run: RunFolder, placement: Placement) -> tuple[IntArray, str]:
    """[N] what runs each op, numbered from 0, -1 for what is in none or in all; and what that is called.

    That is a part or a submodel where a placement is split, else a placement unit.
    """
    plan = run.plan_of(placement)
    if plan is None or len(placement.used_devices) < 2 or run.executor == "cuda":
        return run.problem.units.partition.labels, "placement unit"
    device = run.problem.expand(plan.placement)
    if run.executor == "hetero":
        from hsdag.ir.hetero.submodels import SubmodelCollector

        return SubmodelCollector(run.graph).submodel_of(device), "submodel"
    cut = plan_cut(run.graph, device, run.problem.num_devices, by_load=run.problem.objective.is_steady)
    part = np.full(run.graph.num_ops, -1, dtype=np.int64)
    part[cut.instances.op] = cut.parts.labels
    return part, "part"


def _of_parts(run: RunFolder, costs: WorkConservingCosts, device: IntArray, ranks: IntArray | None) -> Timeline | None:
    objective = run.problem.objective
    times = costs.part_times(device, objective, ranks)
    if times is None:
        return None
    priority = None if ranks is None else ranks.astype(np.float64)
    plan = plan_cut(run.graph, device, run.problem.num_devices, priority, by_load=objective.is_steady)
    specs = [record for name in run.problem.devices for record in run.record.devices if record.name == name]
    return task_graph(plan.cut, specs).timeline(*times, simulated=True)


def _of_ops(run: RunFolder, device: IntArray, ranks: IntArray | None) -> Timeline | None:
    assert run.costs is not None
    by_op = run.costs
    if not isinstance(by_op, OpByOpCosts):
        by_op = OpByOpCosts.of(run.graph, run.costs.costs, run.problem.devices)
    problem = by_op.problem
    sequential = run.executor != "cuda"
    execution = Execution.SEQUENTIAL if sequential else Execution.WORK_CONSERVING
    order = Order.FIFO if ranks is None or sequential else Order.PRIORITY
    done = simulate(problem, device, Semantics(execution=execution, order=order), None if sequential else ranks)
    whole = Timeline.of(done, problem)
    took = np.flatnonzero(whole.ops.end_s > whole.ops.start_s)
    return replace(whole, ops=OpIntervals(**{name: column[took] for name, column in vars(whole.ops).items()}))
