"""One model under random placements: whether they compile, compute what the model computes, and split as predicted.

Legend: N ops, K placements.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov
from real_model_sources import Source

from hsdag.ir import HsdagError
from hsdag.ir.build import graph_of
from hsdag.ir.colocation import colocate
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph import ComputationGraph, IntArray
from hsdag.ir.placement import DeviceRecord, ModelRecord, Placement
from hsdag.ir.reader import load_model
from hsdag.ir.submodels import SubmodelCollector
from hsdag.runtime.measuring.references import op_by_op
from hsdag.runtime.measuring.worker import output_difference
from hsdag.runtime.openvino_backend import compile_placed
from hsdag.runtime.platforms.inference import infer_checked, reason_of
from hsdag.search.verifying import LARGEST_TOLERANCE, SLACK, TOLERANCE_FULL_PRECISION

SINGLE = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1"}
SHARES = (0.5, 0.1, 0.02)
"""Of the sets that a random placement moves to the second device, in turn."""
OP_BY_OP_LIMIT_S = 120.0
EXECUTORS = ("hetero", "work-conserving")
Arrays = list[np.ndarray]

DRAWN = re.compile(r'label="(.*?)\\n.*\\nsubgraph=(\d+)\\n')
"""An op in the drawing that HETERO makes where OPENVINO_HETERO_VISUALIZE is set."""


@dataclass(frozen=True)
class Opening:
    """What is known of a model before it is placed."""

    ops: int
    sets: int


@dataclass(frozen=True)
class Attempt:
    """One placement under one executor; ``difference`` is relative to the largest value of an output, as ``tolerance``,
    and from ``versus``: the whole model on the CPU, or, where only that agrees, its ops one by one.

    ``submodels`` and ``predicted`` count what HETERO made and what we said it would; ``same_members`` compares them op
    by op.
    """

    placement: int
    executor: str
    reason: str | None = None
    difference: float | None = None
    tolerance: float | None = None
    versus: str | None = None
    submodels: int | None = None
    predicted: int | None = None
    same_members: bool | None = None

    @property
    def is_right(self) -> bool:
        """Whether it ran, and computed what the model computes."""
        return self.reason is None


def run_trial(source: Source, folder: Path, count: int, start: int) -> Iterator[dict[str, Any]]:
    """The opening, and the attempts of placements ``start`` to ``count``, as JSON values, each as soon as it is there.

    Before each attempt comes what will be attempted, so that whoever reads knows what a process died of.
    """
    path = source.file(folder)
    model = load_model(path, source.shapes)
    graph = graph_of(model)
    if "ReadValue" in graph.op_types:
        raise HsdagError(f"{source.name} keeps state between inferences")
    core = ov.Core()
    inputs = random_inputs(model, source.integers)
    judge = Judge(core, model, inputs)
    specs = [DeviceSpec.parse(f"{name}=CPU[{properties_text()}]") for name in ("FAST", "SLOW")]
    yield asdict(Opening(graph.num_ops, colocate(graph).sets.num_groups))
    for k, devices in enumerate(placements(graph, count)):
        if k < start // len(EXECUTORS):
            continue
        placement = placement_of(graph, devices, specs)
        for e, executor in enumerate(EXECUTORS):
            if k * len(EXECUTORS) + e < start:
                continue
            yield {"attempting": [k, executor]}
            again = ov.Core().read_model(path)  # as a user does who has but the file and the placement
            if executor == "hetero":
                yield asdict(under_hetero(k, placement, core, again, graph, devices, inputs, judge))
            else:
                yield asdict(under_our_executor(k, placement, core, again, inputs, judge))


def placements(graph: ComputationGraph, count: int) -> Iterator[IntArray]:
    """Devices [N] of ``count`` random placements of co-location sets, and then of contiguous halves."""
    constraints = colocate(graph)
    labels, num_sets = constraints.sets.labels, constraints.sets.num_groups
    working = np.unique(labels[~constraints.floating])
    for k in range(count):
        rng = np.random.default_rng(k)
        moved = rng.random(num_sets) < SHARES[k % len(SHARES)]
        if moved[working].all() or not moved[working].any():
            moved[rng.choice(working)] ^= True
        yield moved.astype(np.int64)[labels]
    first = np.full(num_sets, graph.num_ops)
    np.minimum.at(first, labels, graph.position)
    middle = np.median(first[working])
    yield (first > middle).astype(np.int64)[labels]


def placement_of(graph: ComputationGraph, devices: IntArray, specs: list[DeviceSpec]) -> Placement:
    """The placement file of devices [N]."""
    records = [DeviceRecord.of(spec) for spec in specs]
    return Placement(
        model=ModelRecord.of(graph),
        devices=records,
        affinity={name: specs[d].name for name, d in zip(graph.canonical_names, devices.tolist(), strict=True)},
        names=dict(zip(graph.canonical_names, graph.op_names, strict=True)),
        method="random",
        seed=0,
        objective="latency",
        executor="hetero",
    )


def under_hetero(
    k: int,
    placement: Placement,
    core: ov.Core,
    model: ov.Model,
    graph: ComputationGraph,
    devices: IntArray,
    inputs: Arrays,
    judge: Judge,
) -> Attempt:
    """Compile a placement, draw its submodels, run it."""
    predicted = SubmodelCollector(graph).submodel_of(devices)
    num_predicted = int(predicted.max()) + 1
    try:
        with drawing() as drawn:
            compiled = placement.compile(core, model)
            actual = drawn(graph)
        submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    except (HsdagError, RuntimeError) as error:
        return Attempt(k, "hetero", reason_of(error), predicted=num_predicted)
    verdict = judge.verdict(lambda: outputs_of(compiled, inputs))
    return Attempt(k, "hetero", *verdict, submodels, num_predicted, same_members(predicted, actual))


def under_our_executor(
    k: int, placement: Placement, core: ov.Core, model: ov.Model, inputs: Arrays, judge: Judge
) -> Attempt:
    """Compile a placement for work-conserving execution, and run it."""
    try:
        with compile_placed(model, placement, core=core) as compiled:
            return Attempt(k, "work-conserving", *judge.verdict(lambda: list(compiled(inputs).to_tuple())))
    except (HsdagError, RuntimeError) as error:
        return Attempt(k, "work-conserving", reason_of(error))


Verdict = tuple[str | None, float | None, float, str]
"""Why outputs are not right, None where they are; how far they are from a reference; how far they may be; which."""


class Judge:
    """Judges outputs as a search does (hsdag/search/verifying.py), in this process."""

    def __init__(self, core: ov.Core, model: ov.Model, inputs: Arrays) -> None:
        self._core, self._model, self._inputs = core, model, inputs
        self._whole = outputs_of(core.compile_model(model, "CPU", SINGLE), inputs)

    def verdict(self, run: Callable[[], Arrays]) -> Verdict:
        """Compare what ``run`` returns with the whole model, and where it is too far from it, with op by op."""
        least = TOLERANCE_FULL_PRECISION
        try:
            found = run()
        except (HsdagError, RuntimeError) as error:
            return f"inference: {reason_of(error)}", None, least, "cpu"
        from_whole = relative(found, self._whole)
        if from_whole <= least:
            return None, from_whole, least, "cpu"
        from_ops, tolerance = relative(found, self._one_by_one), self._tolerance
        nearest, versus = min((from_whole, "cpu"), (from_ops, "op by op"))
        reason = f"outputs differ by {from_whole:.1e} from cpu, by {from_ops:.1e} from op by op"
        return None if nearest <= tolerance else reason, nearest, tolerance, versus

    @cached_property
    def _one_by_one(self) -> Arrays:
        return op_by_op(self._core, self._model, [ov.Tensor(array) for array in self._inputs], OP_BY_OP_LIMIT_S)

    @cached_property
    def _tolerance(self) -> float:
        """How far right outputs may be: twice as far as the whole model's are when it is computed otherwise."""
        threads = outputs_of(
            self._core.compile_model(self._model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}), self._inputs
        )
        apart = [relative(other, self._whole) for other in (self._one_by_one, threads)]
        return max([TOLERANCE_FULL_PRECISION, *(SLACK * d for d in apart if SLACK * d <= LARGEST_TOLERANCE)])


def relative(found: Arrays, expected: Arrays) -> float:
    """The largest difference of an output over its largest value; infinite where other values are not finite."""
    difference: float | None = output_difference(found, expected)["max_relative"]
    return np.inf if difference is None else difference


def random_inputs(model: ov.Model, integers: tuple[int, int]) -> Arrays:
    """Normal numbers, and integers in a range."""
    rng = np.random.default_rng(0)
    arrays: Arrays = []
    for port in model.inputs:
        dtype, shape = port.get_element_type().to_dtype(), tuple(port.get_shape())
        real = np.issubdtype(dtype, np.floating)
        arrays.append((rng.standard_normal(shape) if real else rng.integers(*integers, shape)).astype(dtype))
    return arrays


def outputs_of(compiled: Any, inputs: Arrays) -> Arrays:
    """Outputs of an inference. Raises RuntimeError where it fails."""
    request = compiled.create_infer_request()
    for port, array in zip(compiled.inputs, inputs, strict=True):
        request.set_tensor(port, ov.Tensor(array))
    infer_checked(request)
    return [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]


def properties_text() -> str:
    return ";".join(f"{key}={value}" for key, value in SINGLE.items())


@contextlib.contextmanager
def drawing() -> Iterator[Callable[[ComputationGraph], IntArray]]:
    """Within it HETERO draws what it compiles; the submodel [N] of every op as drawn, -1 for ops that are not."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, {"OPENVINO_HETERO_VISUALIZE": "1"}),
    ):

        def read(graph: ComputationGraph) -> IntArray:
            text = next(Path(folder).glob("hetero_subgraphs_*.dot")).read_text()
            found = {op[1]: int(op[2]) for op in map(DRAWN.search, text.splitlines()) if op}
            return np.array([found.get(name, -1) for name in graph.op_names], dtype=np.int64)

        yield read


def same_members(predicted: IntArray, actual: IntArray) -> bool:
    """Whether two splits of ops that run on data agree; Parameters are in none of HETERO's."""
    both = (predicted >= 0) & (actual >= 0)
    pairs = set(zip(predicted[both].tolist(), actual[both].tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
