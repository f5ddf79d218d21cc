"""Numeric bisection: find the first op of a model at which two devices compute different values.

The model is run up to one op on both devices. As in ``git bisect``, the next op is the one that best halves the
remaining ops: an op at which the devices agree clears everything that it is computed from, and one at which they differ
becomes the suspect. This misses rounding differences that vanish again on the way. Therefore the inputs of the suspect
are probed, too, and the suspect is reported only if each of them agrees or cannot be run.

Legend: N ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from pydantic import computed_field

from hsdag.base.errors import OptionError, SearchError, option
from hsdag.base.processes import COMPILING_LIMIT_S, CandidateFailed, WorkerClient
from hsdag.commands.place.verifying import Check
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of, name_uniquely
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph
from hsdag.ir.graph.reader import Shapes, load_model, model_file
from hsdag.ir.placement.placement import Record
from hsdag.runtime.machine.devices import make_core, reduced_precision
from hsdag.runtime.measuring.measurer import OpenVinoMeasurer
from hsdag.runtime.measuring.messages import WORKER_COMMAND, WorkerSetup, ask, worker_client

LIMIT_S = 120.0
"""Seconds that both devices may take to run a part of the model, without compiling."""


@dataclass(frozen=True)
class OpComparison:
    """Comparison of an op's output on two devices, in the model cut after it.

    ``difference`` is relative to the largest value, None for values that are not finite. ``failure`` says why the op
    could not be run.
    """

    op: str
    op_type: str
    difference: float | None
    differs: bool
    failure: str | None = None

    @property
    def words(self) -> str:
        """Return how far the two devices are apart, in words."""
        if self.failure is not None:
            return f"not known ({self.failure})"
        return "in values that are not finite" if self.difference is None else f"by {self.difference:.2g}"


class Bisection(Record):
    """Result of a bisection; the second device is the reference.

    ``whole`` compares the outputs of the whole model. ``first`` is the first op that differs, None if no op does;
    ``alone`` is the same op run by itself on equal inputs, and ``reads`` are the ops that it reads. ``probes`` are all
    ops that were compared, in this order.
    """

    model: str
    devices: tuple[str, str]
    tolerance: float
    whole: OpComparison
    num_ops: int
    first: OpComparison | None
    alone: OpComparison | None
    reads: tuple[OpComparison, ...]
    probes: tuple[OpComparison, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_own(self) -> bool | None:
        """Return whether the op differs by itself rather than because of earlier ops; None if unknown."""
        return None if self.alone is None or self.alone.failure is not None else self.alone.differs

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the result in sentences."""
        outputs = f"The outputs on {' and '.join(self.devices)} differ {self.whole.words}, and {self.tolerance:.2g} is "
        if not self.whole.differs:
            return (f"{outputs}allowed: nothing to look for.",)
        if self.first is None:
            end = "Cut behind any op that was looked at, the model differs no more: only the whole shows it."
            return f"{outputs}allowed.", end
        named = "; ".join(f"{read.op} {read.words}" for read in self.reads)
        failed = sum(probe.failure is not None for probe in self.probes)
        return (
            f"{outputs}allowed.",
            f"{self.first.op} ({self.first.op_type}) is the first op that differs: {self.first.words}.",
            *([f"What it reads: {named}."] if named else []),
            self._cause(),
            f"{len(self.probes)} of {self.num_ops} ops were looked at"
            f"{f', of which {failed} did not run' if failed else ''}. The model was cut behind each, so that devices "
            "fuse it otherwise than in the whole model; differences that come and go in between are not seen.",
        )

    def _cause(self) -> str:
        """Return a sentence that says whether the op itself causes the difference."""
        if self.alone is None or self.alone.failure is not None:
            why = "it reads nothing that could be given to it" if self.alone is None else self.alone.failure
            return f"Whether the difference is its own is not known: {why}."
        alone = f"alone, on equal inputs, the two differ {self.alone.words}"
        if self.alone.differs:
            return f"The difference is its own: {alone}."
        return (
            f"The difference is not its own: {alone}. It shows rounding of the ops before it, which is within the "
            "tolerance there."
        )


class Bisector:
    """Search over the ops of a graph; ``look`` compares an op on both devices and is called once per op."""

    def __init__(self, graph: ComputationGraph, look: Callable[[int], OpComparison]) -> None:
        self._graph = graph
        self._look = look
        self.probes: dict[int, OpComparison] = {}
        self.is_op: BoolArray = ~floating_ops(graph) & ~np.isin(graph.op_types, ("Parameter", "Result", "Assign"))
        self._order: list[int] = graph.topological_order.tolist()
        self._before = [0] * graph.num_ops  # ancestors of each op, as a bit set
        for v in self._order:
            for u in graph.predecessors.of(v).tolist():
                self._before[v] |= self._before[u] | int(self.is_op[u]) << u

    def first(self, suspects: Sequence[int]) -> int | None:
        """Return an op that differs while each op that it reads agrees or fails to run; None if no suspect differs."""
        accused: int | None = None
        while True:
            ordered = sorted(suspects, key=self._graph.position.__getitem__)
            wrong = next((v for v in ordered if self._at(v).differs), None)
            if wrong is None:
                return accused
            accused = self._bisected(wrong)
            suspects = self.reads(accused)

    def reads(self, v: int) -> list[int]:
        """Return the ops that op v reads, without ops that do not depend on data."""
        return [u for u in dict.fromkeys(self._graph.predecessors.of(v).tolist()) if self.is_op[u]]

    def _bisected(self, accused: int) -> int:
        """Bisect the ancestors of an op that differs; return the last op that was found to differ.

        Each step probes the op that best halves the remaining candidates: ancestors of the accused op that are not
        ancestors of an op at which the devices agree.
        """
        left = self._before[accused]
        while left:
            half = left.bit_count() / 2 - 1
            ops = [v for v in self._order if left >> v & 1]
            middle = min(ops, key=lambda v: abs((self._before[v] & left).bit_count() - half))
            probe = self._at(middle)
            if probe.failure is not None:
                left &= ~(1 << middle)
            elif probe.differs:
                accused, left = middle, left & self._before[middle]
            else:
                left &= ~(self._before[middle] | 1 << middle)
        return accused

    def _at(self, v: int) -> OpComparison:
        """Return the probe of op v, made on first use."""
        if v not in self.probes:
            self.probes[v] = self._look(v)
        return self.probes[v]


@dataclass(frozen=True, eq=False)
class Looks:
    """Comparisons of ops on two devices, in the process of ``client``; ``on_step`` is called before each."""

    client: WorkerClient
    graph: ComputationGraph
    devices: tuple[DeviceSpec, DeviceSpec]
    tolerance: float
    on_step: Callable[[str], None]

    def __call__(self, v: int | None, *, alone: bool = False) -> OpComparison:
        """Compare op v in the model cut after it, or ``alone`` on equal inputs; None for the outputs of the model."""
        name, kind = ("the outputs", "Model") if v is None else (self.graph.op_names[v], self.graph.op_types[v])
        self.on_step(f"{'alone' if alone else 'up to'} {name}")
        request = ask(OpenVinoMeasurer.compare_outputs, self.devices, None if v is None else name, alone=alone)
        try:
            distances = self.client.call(request, LIMIT_S, COMPILING_LIMIT_S)
        except CandidateFailed as failure:
            return OpComparison(name, kind, None, False, failure.reason)
        apart = distances["max_relative"]
        return OpComparison(name, kind, apart, apart is None or apart > self.tolerance)


def bisect(
    source: Any,
    devices: Sequence[DeviceSpec],
    *,
    max_difference: float | None = None,
    shapes: Shapes | None = None,
    inputs: Path | None = None,
    seed: int = 0,
    command: Sequence[str] = WORKER_COMMAND,
    on_step: Callable[[str], None] = lambda _: None,
) -> Bisection:
    """Find the first op of a model at which two devices differ by more than a tolerance.

    Devices run in a separate process. Raises OptionError unless there are two devices, ModelError and DeviceError as
    reading and loading do, and SearchError if a device does not run the whole model.

    Args:
        source: A model file or an ``ov.Model``.
        max_difference: Tolerance relative to a tensor's largest value; by default what ``hsdag place`` allows.
    """
    if len(devices) != 2:
        raise OptionError(f"bisect compares two devices, not {len(devices)}: {option('devices')} CPU,GPU.0")
    if max_difference is not None and not 0 <= max_difference < math.inf:
        raise OptionError(f"{option('max_difference')} must be a number from 0 on, not {max_difference:g}")
    make_core(tuple(devices))
    pair = devices[0], devices[1]
    tolerance = Check(reduced_precision(pair), max_difference=max_difference).least
    model = load_model(source.clone() if isinstance(source, ov.Model) else source, shapes)
    name_uniquely(model)
    graph = graph_of(model)
    with ExitStack() as stack:
        path = model_file(source, model, stack)
        client = stack.enter_context(worker_client(WorkerSetup(path, (), dict(shapes or {}), seed, inputs), command))

        look = Looks(client, graph, pair, tolerance, on_step)
        names = pair[0].name, pair[1].name
        whole = look(None)
        if whole.failure is not None:
            raise SearchError(f"{' and '.join(names)} do not both run the model: {whole.failure}")
        bisector = Bisector(graph, look)
        ends = [u for v, kind in enumerate(graph.op_types) if kind == "Result" for u in bisector.reads(v)]
        first = bisector.first(ends) if whole.differs else None
        alone = None if first is None or graph.op_types[first] == "ReadValue" else look(first, alone=True)
        return Bisection(
            model=graph.name,
            devices=names,
            tolerance=tolerance,
            whole=whole,
            num_ops=int(bisector.is_op.sum()),
            first=None if first is None else bisector.probes[first],
            alone=alone,
            reads=() if first is None else tuple(bisector.probes[u] for u in bisector.reads(first)),
            probes=tuple(bisector.probes.values()),
        )
