"""The torch engine: cost of a task, and parity of models op by op.

overhead    microseconds per empty task, which hands its input on (bar: 15); 16 chains side by side over the devices in
            turn, one chain, and "crossing", tasks placed at random, where copies of 16 bytes count as tasks too
parity      models of the zoo op by op, each fed what OpenVINO's CPU computed in f32: the largest difference by op
            type, relative to the largest magnitude (bar: 1e-4); and the ops that are left to OpenVINO

Devices are threads of the CPU, or with --cuda streams on cuda:0. Exit status 1 where parity
misses its bar.

Usage: python benchmarks/torch_engine.py [overhead parity] [--cuda] [--rounds 9] [--models resnet50 ...]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import openvino as ov
import torch
from machine import machine
from openvino import opset13

from hsdag.models import MODELS, ModelSpec, build_model
from hsdag.runtime.torch.devices import LogicalDevice, logical_devices
from hsdag.runtime.torch.executor import TorchExecutor
from hsdag.runtime.torch.graph import Feed, TorchGraph, TorchNode, openvino_graph
from hsdag.runtime.torch.op import allow_tf32
from hsdag.runtime.torch.program import Program, build_program

BAR, BAR_US = 1e-4, 15.0
K, CHAINS, SIZES = 4, 16, (1_000, 10_000)
VOCABULARY = 100  # of the smallest model


def overhead(devices: Sequence[LogicalDevice], rounds: int) -> None:
    """A line for each case and number of tasks."""
    print(f"{'case':<12}{'tasks':>8}{'median':>9}{'least':>8}{'most':>8}   us per task (bar {BAR_US:g})")
    for name, width, is_crossing in (("16 chains", CHAINS, False), ("one chain", 1, False), ("crossing", CHAINS, True)):
        for size in SIZES:
            program = chains(size, width, devices, is_crossing)
            with TorchExecutor(program) as executor:
                executor.load({"x": np.arange(4, dtype=np.float32)})
                found = []
                for _ in range(3 + rounds):
                    request = executor.submit()
                    assert all(x.tolist() == [0.0, 1.0, 2.0, 3.0] for x in request.wait().values())
                    found.append(1e6 * request.latency / program.tasks.num_tasks)
            median, least, most = np.median(found[3:]), min(found[3:]), max(found[3:])
            print(f"{name:<12}{program.tasks.num_tasks:>8}{median:>9.1f}{least:>8.1f}{most:>8.1f}")


def chains(num_tasks: int, width: int, devices: Sequence[LogicalDevice], is_crossing: bool) -> Program:
    """``width`` chains of tasks that hand their input on, over the devices in turn or every task anywhere."""
    reads = [0 if i < width else i - width + 1 for i in range(num_tasks)]
    tasks = (TorchNode(f"t{i}", "Empty", ((u, 0),), lambda xs: (xs[0],)) for i, u in enumerate(reads))
    fed = TorchNode("x", feed=Feed("x", torch.float32, (4,)))
    graph = TorchGraph("empty", (fed, *tasks), {f"y{i}": (num_tasks - i, 0) for i in range(width)})
    in_turn = np.array([0, *(i % width % len(devices) for i in range(num_tasks))])
    anywhere = np.random.default_rng(0).integers(0, len(devices), num_tasks + 1)
    return build_program(graph, anywhere if is_crossing else in_turn, devices)


def parity(spec: ModelSpec, device: torch.device) -> float:
    """A table of one model; its largest difference."""
    model, rng = build_model(spec.name), np.random.default_rng(0)
    inputs = [
        rng.standard_normal(given.shape, dtype=np.float32)
        if given.element_type == "f32"
        else rng.integers(0, VOCABULARY if given.name == "input_ids" else 2, given.shape)
        for given in spec.inputs
    ]
    ordered = [node for node in model.get_ordered_ops() if node.get_type_name() != "Result"]
    read = [port for node in ordered for port in node.outputs() if port.get_target_inputs()]
    graph = openvino_graph(model)
    index = {node.get_name(): v for v, node in enumerate(model.get_ordered_ops())}
    probe = ov.Model([opset13.result(port) for port in read], model.get_parameters(), "probe")
    compiled = ov.Core().compile_model(probe, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)
    values = {
        (index[port.get_node().get_name()], port.get_index()): np.array(compiled[k]) for k, port in enumerate(read)
    }
    counts, worst, left = Counter[str](), defaultdict[str, float](float), set[str]()
    for v, node in enumerate(graph.nodes):
        if node.op_type in ("Constant", "Parameter", "Result"):
            continue
        left |= set() if node.in_torch else {node.op_type}
        reads = [torch.from_numpy(values[u]).to(device) for u in node.reads]
        counts[node.op_type] += 1
        for port, got in enumerate(node.constants or node.run(reads)):
            if (v, port) in values:
                worst[node.op_type] = max(worst[node.op_type], difference(got, values[v, port]))
    print(f"\n{spec.name}: {counts.total()} ops compared; left to OpenVINO: {', '.join(sorted(left)) or 'none'}")
    for kind in sorted(counts):
        print(f"  {kind:28}{counts[kind]:5d} ops  {worst[kind]:.1e}")
    return max(worst.values())


def difference(got: torch.Tensor, wanted: np.ndarray) -> float:
    """The largest difference over the largest magnitude; infinite for other shapes."""
    found, wide = got.cpu().to(torch.float64).numpy(), wanted.astype(np.float64)
    if found.shape != wide.shape:
        return float("inf")
    finite = np.isfinite(wide)
    scale = np.abs(wide[finite]).max(initial=0.0) or 1.0
    return float(np.abs(found[finite] - wide[finite]).max(initial=0.0) / scale)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["overhead", "parity"])
    parser.add_argument("--cuda", action="store_true", help="devices on cuda:0 instead of threads of the CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--models", nargs="*", default=[], help="names from 'hsdag models list'; default: all")
    args = parser.parse_args()
    allow_tf32(False)
    devices = logical_devices(K, "cuda:0" if args.cuda else "cpu")
    print(f"{machine()}; {K} logical devices on {devices[0].torch_device}")
    largest = 0.0
    if "overhead" in args.parts:
        overhead(devices, args.rounds)
    if "parity" in args.parts:
        specs = [spec for spec in MODELS if not args.models or spec.name in args.models]
        with torch.inference_mode():
            largest = max(parity(spec, devices[0].physical) for spec in specs)
        print(f"\nlargest of all: {largest:.1e} (bar {BAR:.0e})")
    return 0 if largest <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
