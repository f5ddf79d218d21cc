"""run_workload: one call that runs a placed workload on torch devices and returns its outputs and its times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from numpy.typing import ArrayLike

from hsdag.evaluators.torch.workload_graph import assemble, random_inputs, workload_graph
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import FloatArray
from hsdag.models import Workload
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.runtime.torch_backend import (
    CapturedProgram,
    Inputs,
    LogicalDevice,
    Program,
    TorchExecutor,
    build_program,
)


class Mode(Enum):
    """How a placed graph is run."""

    DYNAMIC = "work-conserving: an event loop hands every free device the work that is ready"
    BARRIER = "bulk-synchronous: level by level, for comparison"
    CAPTURED = "one CUDA graph, replayed; all devices on one GPU"


@dataclass(frozen=True, eq=False)
class WorkloadRun:
    """Results on the CPU, seconds of every timed run, and the last one's timeline (none where it was captured)."""

    outputs: Mapping[str, torch.Tensor]
    times_s: tuple[float, ...]
    timeline: Timeline | None

    @property
    def median_s(self) -> float:
        """The median time."""
        return float(np.median(self.times_s))


@dataclass(frozen=True)
class RunPlan:
    """``runs`` timed runs after ``warm_ups`` others; each may take ``limit_s`` in the modes with a loop.

    ``widen`` computes in f32 what the workload computes in f16. ``share`` lets devices on one physical device read
    each other's results where they are. Raises OptionError for counts out of range.
    """

    mode: Mode = Mode.DYNAMIC
    runs: int = 1
    warm_ups: int = 1
    limit_s: float | None = None
    widen: bool = False
    share: bool = False

    def __post_init__(self) -> None:
        if self.runs < 1 or self.warm_ups < 0:
            raise OptionError(
                f"at least one run and no fewer than 0 warm-ups are needed, not {self.runs}, {self.warm_ups}"
            )


def run_workload(
    workload: Workload,
    placement: ArrayLike | Mapping[str, str],
    devices: Sequence[LogicalDevice],
    inputs: Inputs | None = None,
    *,
    plan: RunPlan = RunPlan(),
    ranks: FloatArray | None = None,
    seed: int = 0,
) -> WorkloadRun:
    """Run a workload with each op on its device: ``placement`` is [N] indices, or device names by op name.

    ``inputs`` are whole tensors by name, by default random ones from ``seed``; they lie on the devices of their ops
    before the clock starts. ``ranks`` [N] order ready ops, smallest first. Raises OptionError for a placement that does
    not fit, ExecutionError for a run that fails (it names op and device).
    """
    graph = workload_graph(workload, widen=plan.widen)
    program = build_program(graph, _indices(workload, placement, devices), devices, share=plan.share)
    given = random_inputs(graph, seed) if inputs is None else inputs
    if plan.mode is Mode.CAPTURED:
        results, times_s = _run_captured(program, given, plan, ranks)
        return WorkloadRun(assemble(workload, results), times_s, None)
    with TorchExecutor(program, ranks=ranks, barrier=plan.mode is Mode.BARRIER) as executor:
        executor.load(given)
        runs = executor.repeated(plan.warm_ups + plan.runs - 1, limit_s=plan.limit_s)[plan.warm_ups :]
        last = executor.submit(limit_s=plan.limit_s)
        results = assemble(workload, last.wait())
        return WorkloadRun(results, tuple(run.makespan_s for run in (*runs, last.run)), last.timeline)


def _run_captured(
    program: Program, inputs: Inputs, plan: RunPlan, ranks: FloatArray | None
) -> tuple[dict[str, torch.Tensor], tuple[float, ...]]:
    with closing(CapturedProgram(program, inputs, ranks=ranks)) as captured:
        times_s = []
        for _ in range(plan.warm_ups + plan.runs):
            begin_s = time.perf_counter()
            captured.replay()
            times_s.append(time.perf_counter() - begin_s)
        results = {name: tensor.cpu() for name, tensor in captured.infer().items()}
        return results, tuple(times_s[plan.warm_ups :])


def _indices(
    workload: Workload, placement: ArrayLike | Mapping[str, str], devices: Sequence[LogicalDevice]
) -> ArrayLike:
    if not isinstance(placement, Mapping):
        return placement
    index = {device.name: i for i, device in enumerate(devices)}
    for name in workload.graph.op_names:
        if placement.get(name) not in index:
            raise OptionError(f"op {name!r} must be on one of {', '.join(index)}, not on {placement.get(name)!r}")
    return [index[placement[name]] for name in workload.graph.op_names]
