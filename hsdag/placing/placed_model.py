"""PlacedModel: the problem and the costs that follow from a graph, its devices and a profile, without the devices.

Legend: N ops, U placement units, D devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import DeviceError
from hsdag.ir.graph.coarsen import DEFAULT_SHARE, CoarseGraph, placement_units
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.placement.placement import ExecutorName
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.measuring.profile import ModelProfile
from hsdag.runtime.objectives import LATENCY, Objective
from hsdag.runtime.problem.cost_model import CostModel
from hsdag.runtime.problem.pins import with_pins
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.units import problem_of, unit_edges


@dataclass(frozen=True, eq=False)
class PlacedModel:
    """A graph and the devices it is placed on.

    ``units`` are what is placed and ``labels`` what is known of each op, where that is not left to the graph.
    ``pinned`` [N] are devices of pinned ops, as ``pinned_devices`` gives them.
    """

    graph: ComputationGraph
    devices: Sequence[DeviceSpec]
    objective: Objective = LATENCY
    units: CoarseGraph | None = None
    labels: OpLabels | None = None
    pinned: IntArray | None = None  # [N]

    def problem(
        self,
        refused: Sequence[IntArray],
        profile: ModelProfile | None = None,
        memory_bytes: FloatArray | None = None,
        *,
        max_share: float | None = None,
        by_op: bool = False,
    ) -> Problem:
        """The placement problem; ``refused`` are the ops that each device does not run.

        With a profile, fused ops stay together and costs are known, for an executor that starts every op ``by_op``
        itself where that is said; ``memory_bytes`` [D] are then what devices have. Units that hold a pinned op have its
        device alone. Raises DeviceError when an op runs on none of the devices, OptionError for pins that clash.
        """
        found = self._free_problem(refused, profile, memory_bytes, max_share, by_op=by_op)
        return found if self.pinned is None else with_pins(found, self.pinned)

    def _free_problem(
        self,
        refused: Sequence[IntArray],
        profile: ModelProfile | None,
        memory_bytes: FloatArray | None,
        max_share: float | None,
        *,
        by_op: bool,
    ) -> Problem:
        """The problem of units that suit the pins, on which they may be anywhere."""
        together = profile.fused if profile is not None else ()
        share = DEFAULT_SHARE if max_share is None else max_share
        units = self.units or placement_units(self.graph, max_share=share, together=together, pinned=self.pinned)
        names = tuple(spec.name for spec in self.devices)
        supported = np.ones((units.graph.num_ops, len(names)), dtype=np.bool_)
        works = ~floating_ops(self.graph) & ~np.isin(self.graph.op_types, ["Parameter", "Result"])
        for d, ops in enumerate(refused):
            supported[units.partition.labels[ops[works[ops]]], d] = False
        nowhere = np.flatnonzero(~supported.any(axis=1))
        if len(nowhere):
            op, listed = units.graph.op_names[nowhere[0]], ", ".join(names)
            raise DeviceError(f"op {op!r} and the ops tied to it run on none of {listed}; add a device that runs it")
        if profile is None:
            return Problem(units, names, supported, self.objective)
        limits = profile.memory_bytes if memory_bytes is None else memory_bytes
        if self.labels is not None:
            costs = ScheduleProblem.from_graph(self.graph, profile.op_by_op_costs(), names, limits)
            return problem_of(replace(costs, labels=self.labels), self.objective)
        known = profile.op_by_op_costs() if by_op else profile.costs()
        return with_costs(Problem(units, names, supported, self.objective), known, limits)

    def memory_bytes(self, profile: ModelProfile, limits: Mapping[str, float]) -> FloatArray:
        """[D] the limits by device, else what devices have by the profile."""
        known = zip(self.devices, profile.memory_bytes.tolist(), strict=True)
        return np.array([limits.get(spec.name, size) for spec, size in known])

    def costs(self, profile: ModelProfile, executor: ExecutorName) -> PlacementCosts:
        """What placements take under an executor."""
        if executor == "cuda":
            names = tuple(spec.name for spec in self.devices)
            return OpByOpCosts.of(self.graph, profile.op_by_op_costs(), names)
        if executor == "work-conserving":
            return WorkConservingCosts.of(self.graph, profile.costs(side_by_side=True))
        return HeteroCosts.of(self.graph, profile.costs())


def with_costs(problem: Problem, costs: CostModel, memory_bytes: FloatArray) -> Problem:
    """The problem with costs by op as the costs of its units.

    Between units goes what HETERO sends: each tensor, but none to or from ops that float.
    """
    fine, units, labels = problem.units.fine, problem.units.graph, problem.units.partition.labels
    columns = [np.bincount(labels, np.nan_to_num(column)) for column in costs.time_s.T]
    time_s = np.stack(columns, axis=1).astype(np.float64)
    time_s[~problem.supported] = np.nan
    by_unit = ScheduleProblem.from_graph(units, replace(costs, time_s=time_s), problem.devices, memory_bytes)
    floats = floating_ops(fine)
    sent = ~floats[fine.edge_src] & ~floats[fine.edge_dst]
    tensors = (fine.edge_src, fine.edge_dst, fine.edge_src_port, fine.edge_bytes)
    edges, edge_bytes, edge_port = unit_edges(*tensors, labels, sent)
    src, dst = edges.T.copy()
    return replace(
        problem, costs=replace(by_unit, edge_src=src, edge_dst=dst, edge_bytes=edge_bytes, edge_port=edge_port)
    )
