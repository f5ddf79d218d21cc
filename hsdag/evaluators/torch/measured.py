"""Measured evaluation on torch devices, by the work-conserving executor. Legend: N ops, U placement units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hsdag.evaluators.base import Evaluator, Score
from hsdag.evaluators.measurement import SearchMeasurement
from hsdag.evaluators.torch import Mode, random_inputs
from hsdag.ir.errors import HsdagError
from hsdag.ir.graph import IntArray
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.torch_backend import Inputs, LogicalDevice, TorchExecutor, TorchGraph, build_program
from hsdag.runtime.torch_backend.state import tensor_of


@dataclass(frozen=True)
class TorchMeasurement:
    """How a placement is run: as in any search, each run for at most ``limit_s`` seconds.

    ``mode`` is the dynamic loop or its bulk-synchronous counterpart. ``share`` lets devices on one physical device
    read each other's results where they are.
    """

    times: SearchMeasurement = field(default_factory=SearchMeasurement)
    limit_s: float = 60.0
    mode: Mode = Mode.DYNAMIC
    share: bool = False

    def __post_init__(self) -> None:
        if self.mode is Mode.CAPTURED:
            raise ValueError(
                "placements are measured in the dynamic or the barrier mode; capturing each takes too long"
            )


class TorchEvaluator(Evaluator):
    """Makespans of placements [N], or [U] where ``unit_of_op`` [N] gives the unit of each op, one at a time.

    ``inputs`` are whole tensors by name, random by default; they lie on the devices of their ops before the clock
    starts.
    """

    takes_order = True

    def __init__(
        self,
        graph: TorchGraph,
        devices: Sequence[LogicalDevice],
        inputs: Inputs | None = None,
        *,
        measurement: TorchMeasurement | None = None,
        unit_of_op: IntArray | None = None,
    ) -> None:
        self.graph, self.devices, self.measurement = graph, tuple(devices), measurement or TorchMeasurement()
        self._inputs = random_inputs(graph) if inputs is None else inputs
        if len({device.torch_device for device in devices}) == 1 and devices[0].is_cuda:  # copy them to the GPU once
            self._inputs = {name: tensor_of(x).to(devices[0].physical) for name, x in self._inputs.items()}
        self._unit_of_op, self._best_s = unit_of_op, np.inf

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Run each placement; those that fail or take too long say why."""
        return [self._measured(plan) for plan in plans]

    def _measured(self, plan: Plan) -> Score:
        units = slice(None) if self._unit_of_op is None else self._unit_of_op
        ranks = None if plan.order is None else plan.order[units].astype(np.float64)
        how = self.measurement
        try:
            program = build_program(self.graph, plan.placement[units], self.devices, share=how.share)
            with TorchExecutor(program, ranks=ranks, barrier=how.mode is Mode.BARRIER) as executor:
                executor.load(self._inputs)
                seconds = how.times.seconds(
                    lambda runs: [run.makespan_s for run in executor.repeated(runs, limit_s=how.limit_s)], self._best_s
                )
        except HsdagError as failure:
            return Score.failed(str(failure))
        self._best_s = min(self._best_s, seconds)
        return Score(seconds)
