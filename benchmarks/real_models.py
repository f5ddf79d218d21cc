"""Whether placements hold on models that nobody here wrote: under HETERO, under our executor, and in prediction.

Models come from packages of the registry (see real_model_sources.py): files that they ship, their definitions with
random weights, and variants that NNCF quantised. Each is placed on two CPU devices of one thread and single precision:
random placements of its co-location sets, and contiguous halves. A placement, made of the model as it is read first, is
right where it compiles with the model as it is read again and every output is within the tolerance of the whole model's
on the CPU, or of its ops one by one; HETERO's submodels are compared op by op with what we predict. Each model runs in
a process of its own; one that dies or hangs fails. Exit status 1 when any failed or the prediction did.

Usage: python benchmarks/real_models.py [--models NAME,...] [--placements 6] [--limit 600] [--list]
The packages: pip install --no-deps -r benchmarks/real_models_requirements.txt
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov
from machine import ONE, options
from real_model_sources import FOLDER, Source, all_sources, in_process

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import HsdagError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.submodels import SubmodelCollector
from hsdag.placing.final import LARGEST_TOLERANCE, SLACK, TOLERANCE_FULL_PRECISION
from hsdag.runtime.executor.compiling import compile_placed
from hsdag.runtime.machine.devices import infer_checked
from hsdag.runtime.measuring.differences import op_by_op, output_difference
from tests.hsdag.ir.placement.hetero_members import same_members
from tests.placements import by_hand

SINGLE = dict(each.split("=") for each in ONE.split(";"))
DEVICES = tuple(f"{name}=CPU[{ONE}]" for name in ("FAST", "SLOW"))
SHARES = (0.5, 0.1, 0.02)
"""Of the sets that a random placement moves to the second device, in turn."""
OP_BY_OP_LIMIT_S = 120.0
DRAWING = mock.patch.dict(os.environ, {"OPENVINO_HETERO_VISUALIZE": "1"})
"""Within it HETERO draws what it compiles."""
DRAWN = re.compile(r'label="(.*?)\\n.*\\nsubgraph=(\d+)\\n')
"""An op in the drawing; Parameters are in none."""
Arrays = list[np.ndarray]


def relative(found: Arrays, expected: Arrays) -> float:
    """The largest difference of an output over its largest value; infinite where other values are not finite."""
    difference: float | None = output_difference(found, expected)["max_relative"]
    return np.inf if difference is None else difference


class Trial:
    """One model, its inputs, and the outputs that are right."""

    def __init__(self, source: Source) -> None:
        self.path, self.core = source.file(FOLDER), ov.Core()
        self.model = load_model(self.path, source.shapes)
        self.graph, rng = graph_of(self.model), np.random.default_rng(0)
        if "ReadValue" in self.graph.op_types:
            raise HsdagError(f"{source.name} keeps state between inferences")
        self.inputs: Arrays = []
        for port in self.model.inputs:
            dtype, shape = port.get_element_type().to_dtype(), tuple(port.get_shape())
            real = np.issubdtype(dtype, np.floating)
            drawn = rng.standard_normal(shape) if real else rng.integers(*source.integers, shape)
            self.inputs.append(drawn.astype(dtype))
        self.whole = self.outputs(self.core.compile_model(self.model, "CPU", SINGLE))

    def outputs(self, compiled: Any) -> Arrays:
        """Outputs of an inference. Raises RuntimeError where it fails."""
        request = compiled.create_infer_request()
        for port, array in zip(compiled.inputs, self.inputs, strict=True):
            request.set_tensor(port, ov.Tensor(array))
        infer_checked(request)
        return [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]

    @cached_property
    def one_by_one(self) -> Arrays:
        """Outputs of ops that are computed one by one."""
        inputs = [ov.Tensor(array) for array in self.inputs]
        return op_by_op(self.core, self.model, [inputs], OP_BY_OP_LIMIT_S)

    @cached_property
    def tolerance(self) -> float:
        """How far right outputs may be: twice as far as the whole model's are when it is computed otherwise."""
        threads = self.outputs(self.core.compile_model(self.model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}))
        apart = [SLACK * relative(other, self.whole) for other in (self.one_by_one, threads)]
        return max([TOLERANCE_FULL_PRECISION, *(d for d in apart if d <= LARGEST_TOLERANCE)])

    def difference(self, run: Callable[[], Arrays]) -> float:
        """How far outputs are from the nearer reference. Raises HsdagError where that is too far."""
        found = run()
        apart = relative(found, self.whole)
        if apart > TOLERANCE_FULL_PRECISION:
            apart = min(apart, relative(found, self.one_by_one))
            if apart > self.tolerance:
                raise HsdagError(f"outputs differ by {apart:.1e}, {self.tolerance:.1e} is allowed")
        return apart

    def placements(self, count: int) -> Iterator[IntArray]:
        """Devices [N] of ``count`` random placements of co-location sets, and then of contiguous halves."""
        constraints = colocate(self.graph)
        labels, num_sets = constraints.sets.labels, constraints.sets.num_groups
        working = np.unique(labels[~constraints.floating])
        for k in range(count):
            rng = np.random.default_rng(k)
            moved = rng.random(num_sets) < SHARES[k % len(SHARES)]
            if moved[working].all() or not moved[working].any():
                moved[rng.choice(working)] ^= True
            yield moved.astype(np.int64)[labels]
        first = np.full(num_sets, self.graph.num_ops)
        np.minimum.at(first, labels, self.graph.position)
        yield (first > np.median(first[working])).astype(np.int64)[labels]

    def under(self, executor: str, devices: IntArray) -> float:
        """The difference of a placement. Raises HsdagError or RuntimeError where it is not right."""
        specs, model = [DeviceSpec.parse(text) for text in DEVICES], ov.Core().read_model(self.path)
        names = [specs[d].name for d in devices.tolist()]
        read = dict(zip(self.graph.canonical_names, self.graph.op_names, strict=True))
        placement = by_hand(self.graph, specs, names, executor=executor, names=read)
        if executor == "work-conserving":
            with compile_placed(model, placement, core=self.core) as compiled:
                return self.difference(lambda: list(compiled(self.inputs).to_tuple()))
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), DRAWING:
            compiled = placement.compile(self.core, model)
            text = next(Path(folder).glob("hetero_subgraphs_*.dot")).read_text()
        found = {op[1]: int(op[2]) for op in map(DRAWN.search, text.splitlines()) if op}
        actual = np.array([found.get(name, -1) for name in self.graph.op_names], dtype=np.int64)
        if not same_members(SubmodelCollector(self.graph).submodel_of(devices), actual):
            raise HsdagError("HETERO makes other submodels than predicted")
        return self.difference(lambda: self.outputs(compiled))


def try_here(name: str, count: int) -> None:
    """Print what comes of all placements of a model, as JSON; what libraries print goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    trial = Trial(next(source for source in all_sources() if source.name == name))
    found: dict[str, Any] = {"ops": trial.graph.num_ops, "right": 0, "tried": 0, "difference": 0.0, "reasons": []}
    for k, devices in enumerate(trial.placements(count)):
        for executor in ("hetero", "work-conserving"):
            found["tried"] += 1
            try:
                found["difference"] = max(found["difference"], trial.under(executor, devices))
                found["right"] += 1
            except (HsdagError, RuntimeError) as error:
                found["reasons"].append(f"placement {k} under {executor}: {str(error)[:150]}")
    os.write(answers, json.dumps(found).encode())


def main() -> int:
    given = options(
        __doc__,
        models=("", "names, or beginnings of names, separated by commas"),
        placements=(6, "random ones of each model, beside the halves"),
        limit=(600.0, "seconds for one model"),
        list=(False, "print the models and what they need, and end"),
    )
    sources = [source for source in all_sources() if source.name.startswith(tuple(given.models.split(",")))]
    if given.list:
        print("\n".join(f"{s.name:26s} {s.needs:22s} {'' if s.shipped else 'missing'}" for s in sources))
        return 0
    placed = right = tried = missed = 0
    for source in (s for s in sources if s.shipped):
        try:
            done = in_process(try_here, source.name, given.placements, limit_s=given.limit)
            row = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            reason = str(error) if isinstance(error, subprocess.TimeoutExpired) else done.stderr.strip()[-150:]
            print(f"{source.name:26s} not placed: {reason}", flush=True)
            missed += "keeps state" not in reason
            continue
        placed, right, tried = placed + 1, right + row["right"], tried + row["tried"]
        print(
            f"{source.name:26s} {row['ops']:6d} ops {row['right']:3d} of {row['tried']} right, {row['difference']:.1e}"
        )
        print("".join(f"    {reason}\n" for reason in row["reasons"]), end="", flush=True)
    print(f"{placed} models placed; {right} of {tried} placements right; {missed} models failed")
    return 0 if placed and right == tried and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
