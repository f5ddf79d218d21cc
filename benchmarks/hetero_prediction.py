"""Whether HETERO does with a model what ``hsdag doctor`` says before the model is compiled.

For every model and list of devices, without and with PIPELINE_PARALLEL: the predicted device and submodel of every op,
and the submodels on each device, against those of the compiled model. Where there are no GPUs, the devices are parts
of the CPU, and HETERO gives all ops to the first one; there, models also get affinities of their own, at random.
With --share, software GPUs have that share of the memory that a model's weights take, so that PIPELINE_PARALLEL splits;
a model that is then too large for a device ends with a refusal of its plugin, and does not count.

Usage: python benchmarks/hetero_prediction.py [--models NAME,...] [--devices LIST]... [--share 0.7]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from hetero_members import actual_choice
from machine import machine
from openvino import opset15 as op

from hsdag.commands.doctor.hetero import (
    PIPELINE_PARALLEL,
    Distribution,
    automatic_distribution,
    given_distribution,
)
from hsdag.ir import DeviceSpec, colocate
from hsdag.ir.build import graph_of, name_uniquely
from hsdag.ir.device import hetero_properties, parse_devices
from hsdag.ir.errors import ExecutionError
from hsdag.ir.graph import ComputationGraph
from hsdag.ir.reader import load_model
from hsdag.models import save_model_files
from hsdag.runtime.measuring.examiner import Examiner
from hsdag.runtime.measuring.messages import AskHetero, ExaminerSetup
from hsdag.runtime.platforms.devices import make_core
from hsdag.runtime.platforms.inference import reason_of

ZOO = (
    "tiny_resnet tiny_inception tiny_bert tiny_llama tiny_stateful_llama_fp16 tiny_stateful_llama_int4 "
    "tiny_stateful_moe_int8 resnet50 llama-decoder"
).split()
CPU_LISTS = (
    "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]",
    "B=CPU[INFERENCE_NUM_THREADS=1],CPU",
    "CPU,A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]",
)
GPU_LISTS = ("GPU.0,GPU.1", "GPU.0,CPU", "CPU,GPU.0,GPU.1")
ENDS = ("Parameter", "Constant")
FULL = "a device is too small"
OUT_OF_MEMORY = ("exceed_allocatable_mem_size", "Exceeded max size of memory", "CL_OUT_OF")
SIDE = 4


def _given() -> Any:
    return op.parameter([SIDE, SIDE], np.float32)


def _matrix(seed: int) -> Any:
    return op.constant(np.random.default_rng(seed).standard_normal((SIDE, SIDE)).astype(np.float32))


def detour() -> ov.Model:
    """Twice a detour through an op that GPUs do not run, and an input that nothing reads."""
    x = _given()
    first = op.relu(x)
    second = op.add(op.inverse(first, False), first)
    last = op.add(op.multiply(op.inverse(second, False), first), second)
    return ov.Model([op.result(last), op.result(first)], [x, op.parameter([2], np.float32)], "detour")


def chain() -> ov.Model:
    """Ops that GPUs do and do not run in turn, which read one constant."""
    given, shared = _given(), _matrix(0)
    node: Any = given
    for _ in range(6):
        node = op.inverse(op.add(op.matmul(node, shared, False, False), shared), False)
    return ov.Model([op.result(node)], [given], "chain")


def branches() -> ov.Model:
    """Three inputs, parts of a split tensor, and an op that GPUs do not run on one of the branches."""
    inputs = [_given() for _ in range(3)]
    halves = op.split(op.concat([inputs[0], inputs[1]], 0), op.constant(np.int64(0)), 2)
    left, right = op.tanh(halves.output(0)), op.inverse(halves.output(1), False)
    joined = op.matmul(left, op.add(right, inputs[2]), False, False)
    return ov.Model([op.result(joined), op.result(op.exp(right))], inputs, "branches")


def shapes() -> ov.Model:
    """A batch that is open, and a shape that is computed from it."""
    x = op.parameter(ov.PartialShape([-1, 2 * SIDE]), np.float32)
    rows = op.gather(op.shape_of(x), op.constant(np.array([0])), op.constant(np.int64(0)))
    target = op.concat([rows, op.constant(np.array([2, SIDE]))], 0)
    cut = op.reshape(x, target, False)
    return ov.Model([op.result(op.softmax(op.relu(cut), 2))], [x], "shapes")


def bodies() -> ov.Model:
    """An If with two bodies between ordinary ops."""
    x, condition = _given(), op.parameter([], bool)
    made = op.if_op(condition.output(0))
    for put, body_op in ((made.set_then_body, op.relu), (made.set_else_body, op.tanh)):
        inner = _given()
        put(ov.Model([op.result(body_op(inner))], [inner], "body"))
    source = op.abs(x)
    then_in = made.get_function(0).get_parameters()[0]
    else_in = made.get_function(1).get_parameters()[0]
    made.set_input(source.output(0), then_in, else_in)
    out = made.set_output(made.get_function(0).get_results()[0], made.get_function(1).get_results()[0])
    return ov.Model([op.result(op.add(out, source))], [x, condition], "bodies")


def stored() -> ov.Model:
    """Products with weights that are stored in fewer bits, and are decompressed where they are read."""
    x = op.parameter([2, 64], np.float32)
    rng, node = np.random.default_rng(0), x
    for element_type in ("f16", "i8", "u4", "f16"):
        values = rng.integers(0, 15, (64, 64)).astype(np.float32)
        weight = ov.op.Constant(getattr(ov.Type, element_type), ov.Shape([64, 64]), values.ravel().tolist())
        node = op.matmul(node, op.multiply(op.convert(weight, "f32"), op.constant(np.float32(0.01))), False, True)
    return ov.Model([op.result(node)], [x], "stored")


def wired(seed: int, num_ops: int = 40) -> ov.Model:
    """Ops wired at random, of which GPUs do not run one in six."""
    rng = np.random.default_rng(seed)
    inputs = [_given() for _ in range(1 + seed % 3)]
    pool: list[Any] = list(inputs)

    def some() -> Any:
        return pool[-1 - int(rng.integers(min(len(pool), 5)))]

    kinds: list[Callable[[], Any]] = [
        lambda: op.sigmoid(some()),
        lambda: op.add(some(), some()),
        lambda: op.multiply(some(), _matrix(seed)),
        lambda: op.matmul(some(), some(), False, False),
        lambda: op.maximum(some(), op.convert(op.constant(np.ones((SIDE, SIDE), np.int8)), "f32")),
        lambda: op.inverse(some(), False),
    ]
    for kind in rng.integers(0, len(kinds), num_ops).tolist():
        pool += [kinds[kind]()]
    first, *rest = [node for node in pool if not node.output(0).get_target_inputs()]
    for node in rest:
        first = op.add(first, node)  # HETERO's own choice of devices fails where several submodels are last
    return ov.Model([op.result(first)], inputs, f"wired-{seed}")


OWN: dict[str, Callable[[], ov.Model]] = {
    made.__name__: made for made in (detour, chain, branches, shapes, bodies, stored)
} | {f"wired-{seed}": (lambda seed=seed: wired(seed)) for seed in (0, 1, 4, 7, 10)}


def written(name: str, folder: Path) -> Path:
    """The file of a model by name."""
    path = folder / f"{name}.xml"
    if name not in OWN:
        return save_model_files(name, path)
    ov.save_model(OWN[name](), path, compress_to_fp16=False)
    return path


def counted(graph: ComputationGraph, found: Distribution) -> Counter[str]:
    """Predicted submodels by device, and those that HETERO makes of inputs that nothing reads, but does not count."""
    unread = [v for v, kind in enumerate(graph.op_types) if kind == "Parameter" and found.submodel[v] < 0]
    names = Counter(found.devices[int(found.device[v])] for v in unread)
    return names + Counter(found.submodels)


def disagreement(
    graph: ComputationGraph, found: Distribution, ops: dict[str, tuple[str, str]], submodels: tuple[str, ...]
) -> str | None:
    """What the compiled model does otherwise than predicted, None where nothing."""
    if Counter(submodels) != counted(graph, found):
        return f"submodels {dict(Counter(submodels))}, not {dict(counted(graph, found))}"
    drawn = [v for v, kind in enumerate(graph.op_types) if kind not in ENDS and graph.op_names[v] in ops]
    wrong = [v for v in drawn if ops[graph.op_names[v]][0] != found.devices[int(found.device[v])]]
    if wrong:
        return f"{len(wrong)} ops on other devices, for example {graph.op_names[wrong[0]]!r}"
    pairs = {(int(found.submodel[v]), ops[graph.op_names[v]][1]) for v in drawn if found.submodel[v] >= 0}
    if not len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}):
        return "the members of submodels are others"
    return None


def checks(
    path: Path, specs: tuple[DeviceSpec, ...], *, is_given: bool
) -> Iterator[tuple[str, Distribution, str | None, float]]:
    """The prediction, what is otherwise, and seconds to compile: with each policy, and with affinities at random."""
    model = load_model(path, dynamic=True)
    name_uniquely(model)
    graph, core = graph_of(model), make_core(specs)
    names = [spec.openvino_name for spec in specs]
    target, examiner = "HETERO:" + ",".join(names), Examiner(ExaminerSetup(path))
    for policy in ({}, PIPELINE_PARALLEL):
        try:
            chosen = examiner.handle(AskHetero(specs, policy))
        except ExecutionError:  # HETERO's own code fails already when it is asked
            chosen = [""] * graph.num_ops
        found = automatic_distribution(graph, names, chosen, next(iter(policy.values()), None))
        yield found.policy or "", found, *_compared(graph, found, core, model, target, hetero_properties(specs, policy))
    if is_given and not any(graph.variables):  # HETERO refuses most parts of a model with state
        sets = colocate(graph).sets
        moves = np.random.default_rng(0).integers(0, len(names), sets.num_groups)
        affinities = [names[d] for d in moves[sets.labels].tolist()]
        for node, name in zip(model.get_ordered_ops(), affinities, strict=True):
            node.get_rt_info()["affinity"] = name
        found = given_distribution(graph, affinities)
        yield "given", found, *_compared(graph, found, core, model, target, hetero_properties(specs))


def _compared(
    graph: ComputationGraph, found: Distribution, core: Any, model: ov.Model, target: str, properties: dict[str, Any]
) -> tuple[str | None, float]:
    begin = time.perf_counter()
    try:
        actual = actual_choice(core, model, target, properties)
        wrong = "compiles" if found.failure is not None else disagreement(graph, found, *actual)
    except RuntimeError as error:
        is_full = any(text in str(error) for text in OUT_OF_MEMORY)
        wrong = None if found.failure is not None else FULL if is_full else f"does not compile: {reason_of(error)}"
    return wrong, time.perf_counter() - begin


def with_little_memory(path: Path, name: str, lists: Sequence[str], share: float) -> tuple[int, int]:
    """Cases that were as predicted, and all, of a process in which GPUs have little memory; prints what it prints."""
    memory = int(share * graph_of(load_model(path, dynamic=True)).weight_bytes.sum())
    devices = [part for text in lists for part in ("--devices", text)]
    command = [sys.executable, __file__, "--models", name, *devices]
    environment = os.environ | {"SOFTWARE_GPU_MEMORY": str(memory)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print("".join(done.stdout.splitlines(keepends=True)[1:-1]) or done.stderr, end="", flush=True)
    found = re.search(r"(\d+) of (\d+) cases", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join([*ZOO, *OWN]), help="names, separated by commas")
    parser.add_argument("--devices", action="append", help="a list of devices as for hsdag; may be repeated")
    parser.add_argument("--share", type=float, help="memory of a software GPU over a model's weights")
    options = parser.parse_args()
    has_gpus = {"GPU.0", "GPU.1"} <= set(ov.Core().available_devices)
    lists = options.devices or (GPU_LISTS if has_gpus else CPU_LISTS)
    print(machine())
    right, count, names = 0, 0, options.models.split(",")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = written(name, Path(folder))
            if options.share is not None:
                done = with_little_memory(path, name, lists, options.share)
                right, count = right + done[0], count + done[1]
                continue
            for text in lists:
                specs = parse_devices(text)
                for case, found, wrong, took_s in checks(path, specs, is_given="GPU" not in text):
                    count, right = count + (wrong != FULL), right + (wrong is None)
                    shown = " ".join(f"{d}:{n}/{found.submodels[d]}" for d, n in found.ops.items())
                    row = f"{name:26s} {','.join(s.name for s in specs):18s} {case:18s} {shown:44s}"
                    said = "as predicted" if found.failure is None else "refused, as predicted"
                    print(f"{row} {took_s:5.1f} s  {wrong or said}", flush=True)
    print(f"{len(names)} models, {len(lists)} lists of devices: predicted equals actual in {right} of {count} cases")
    return 0 if right == count else 1


if __name__ == "__main__":
    sys.exit(main())
