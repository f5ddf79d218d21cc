"""Whether Inception-V3, ResNet-50 and BERT give the right answers through the work-conserving executor.

Each network of the zoo at full size is placed on two CPU devices of one thread and full precision, in several ways: all
on one device, its co-location sets in two halves by their topological order, balanced runs of ten sets in turn, and
random sets. Every output must be bit for bit what the same compiled subgraphs give when OpenVINO runs them one after
another, on copied tensors; and within 1e-4 of what the plain CPU plugin gives for the whole model in full precision,
relative to the largest value of the output. Four inferences are in flight at once, each with inputs of its own. Exit
status 1 when one differs.

Usage: python benchmarks/executor_parity.py [--models inception_v3,resnet50,bert_base_uncased] [--random 3] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openvino as ov
from machine import machine
from numpy.typing import NDArray

from hsdag.ir.build import graph_of
from hsdag.ir.colocation import colocate
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph import ComputationGraph, IntArray
from hsdag.models import build_model
from hsdag.runtime.openvino_backend import Cut, Tensor, compile_on

BAR = 1e-4
IN_FLIGHT = 4
MODELS = "inception_v3,resnet50,bert_base_uncased"
FULL_PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}
Arrays = list[NDArray[Any]]


class RecordingCore:
    """An ov.Core that keeps what it compiles."""

    def __init__(self) -> None:
        self.core, self.compiled = ov.Core(), list[Any]()

    def compile_model(self, *args: Any) -> Any:
        self.compiled.append(self.core.compile_model(*args))
        return self.compiled[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)


def placements(graph: ComputationGraph, num_random: int, seed: int) -> Iterator[tuple[str, IntArray]]:
    """Names of placements, and the device of every op [N]."""
    sets = colocate(graph).sets
    first = np.full(sets.num_groups, graph.num_ops)
    np.minimum.at(first, sets.labels, graph.position)
    rank = np.empty(sets.num_groups, dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(sets.num_groups)
    rng = np.random.default_rng(seed)
    yield "one device", np.zeros(graph.num_ops, dtype=np.int64)
    yield "two halves", (2 * rank // sets.num_groups)[sets.labels]
    yield "runs of ten", (rank // 10 % 2)[sets.labels]
    for k in range(num_random):
        yield f"random {k}", (rng.random(sets.num_groups) < (0.5, 0.1, 0.02)[k % 3]).astype(np.int64)[sets.labels]


def random_inputs(model: ov.Model, seed: int) -> Arrays:
    """Normal numbers, and 0 or 1 where whole numbers are wanted."""
    rng = np.random.default_rng(seed)
    inputs: Arrays = []
    for port in model.inputs:
        dtype, shape = port.get_element_type().to_dtype(), tuple(port.get_shape())
        whole = np.issubdtype(dtype, np.integer)
        inputs.append((rng.integers(0, 2, shape) if whole else rng.standard_normal(shape)).astype(dtype))
    return inputs


def in_order(cut: Cut, compiled: list[Any], model: ov.Model) -> Callable[[Arrays], Arrays]:
    """Runs subgraphs one after another on requests of its own, on copies of what they hand on."""
    requests = [each.create_infer_request() for each in compiled]
    names = cut.graph.op_names

    def run(inputs: Arrays) -> Arrays:
        given = {port.get_node().get_friendly_name(): array for port, array in zip(model.inputs, inputs, strict=True)}
        made: dict[Tensor, NDArray[Any]] = {}
        for part, each, request in zip(cut.subgraphs, compiled, requests, strict=True):
            read = {f"{names[t.op]}:{t.port}": t for t in part.inputs}
            for k, port in enumerate(each.inputs):
                tensor = read[port.get_node().get_friendly_name()]
                request.set_input_tensor(k, ov.Tensor(given[names[tensor.op]] if tensor.source < 0 else made[tensor]))
            request.start_async()
            request.wait()
            made.update((tensor, np.array(request.get_output_tensor(k).data)) for k, tensor in enumerate(part.outputs))
        of_result = {names[v]: made[tensor] for v, tensor in cut.results}
        return [of_result[port.get_node().get_friendly_name()] for port in model.outputs]

    return run


def relative_error(found: Arrays, expected: Arrays) -> float:
    """The largest difference of an output over its largest value."""
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True))


def check_model(name: str, num_random: int, seed: int) -> bool:
    """Print a line for each placement; whether all agree."""
    model = build_model(name)
    graph = graph_of(model)
    specs = [DeviceSpec.parse(f"CPU_{d}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]") for d in range(2)]
    inputs = [random_inputs(model, seed + k) for k in range(IN_FLIGHT)]
    plain = ov.Core().compile_model(model, "CPU", FULL_PRECISION)
    on_cpu = [[np.array(array) for array in plain(each).to_tuple()] for each in inputs]
    all_kept = True
    for what, device in placements(graph, num_random, seed):
        begin, core = time.perf_counter(), RecordingCore()
        with compile_on(core, model, graph, specs, [specs[d].openvino_name for d in device]) as compiled:
            took_s, num_subgraphs = time.perf_counter() - begin, len(compiled.cut.subgraphs)
            requests = [compiled.create_infer_request() for _ in inputs]
            for request, each in zip(requests, inputs, strict=True):
                request.start_async(each)
            for request in requests:
                request.wait()
            found = [list(request.results.to_tuple()) for request in requests]
            by_hand = in_order(compiled.cut, core.compiled, model)
            expected = [by_hand(each) for each in inputs]
        identical = all(
            a.tobytes() == b.tobytes() for f, e in zip(found, expected, strict=True) for a, b in zip(f, e, strict=True)
        )
        error = max(relative_error(f, c) for f, c in zip(found, on_cpu, strict=True))
        kept = identical and error <= BAR
        all_kept &= kept
        print(
            f"{name:18s} {what:12s} {num_subgraphs:4d} subgraphs, compiled in {took_s:4.1f} s: "
            f"{'bit-identical' if identical else 'DIFFERS'} to them in order, {error:.1e} from the plain CPU"
            f"{'' if kept else '   <-- MISSED'}",
            flush=True,
        )
    return all_kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--random", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine())
    kept = [check_model(name, options.random, options.seed) for name in options.models.split(",")]
    print(
        "all outputs agree"
        if all(kept)
        else f"outputs differ by more than {BAR:g}, or from the same subgraphs in order"
    )
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
