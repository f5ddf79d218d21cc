"""Microseconds that the executor's event loop adds to a task, with tasks that do nothing.

Chains of empty tasks that end when they start, on one device and on four in turn: what a task of a torch graph costs
beside its op. Then chains of OpenVINO models of one Relu on one number, each compiled for a CPU device of one thread,
on one such device and on two in turn. What the same models cost one after another in a Python loop is subtracted, by
``start_async`` and ``wait``, and by ``infer``, which changes no thread and is the harder to stay near. Rounds are
interleaved; answers are checked first. Exit status 1 when a median misses its bar: 15 us for each empty task; 60 us for
each OpenVINO task, over ``infer`` on one device, and over ``start_async`` and ``wait`` on two.

Usage: python benchmarks/engine_overhead.py [--largest 100000] [--models 100] [--rounds 30]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from machine import machine
from openvino import opset13

from hsdag.ir.build import graph_of
from hsdag.ir.device import parse_devices
from hsdag.ir.partition import Partition
from hsdag.runtime.cutting.cut import cut_of, instances_of
from hsdag.runtime.executor import Engine, NullBackend, Resource, TaskGraph
from hsdag.runtime.openvino_backend.backend import OpenVinoBackend
from hsdag.runtime.openvino_backend.compiling import task_graph
from hsdag.runtime.openvino_backend.submodels import SubmodelBuilder

EMPTY_BAR_US, OPENVINO_BAR_US = 15.0, 60.0
DEVICES = "ONE=CPU[INFERENCE_NUM_THREADS=1],TWO=CPU[INFERENCE_NUM_THREADS=1]"


def chain(num_tasks: int, num_devices: int) -> TaskGraph:
    """Tasks one after another, on devices in turn."""
    devices = tuple(Resource(f"d{k}", k) for k in range(num_devices))
    first = np.arange(num_tasks - 1)
    names = tuple(f"t{t}" for t in range(num_tasks))
    return TaskGraph.of(names, np.arange(num_tasks) % num_devices, devices, np.stack([first, first + 1], axis=1))


def microseconds(play: Callable[[], object], num_tasks: int) -> float:
    """Per task, of one run."""
    begin = time.perf_counter()
    play()
    return 1e6 * (time.perf_counter() - begin) / num_tasks


def shown(samples: list[float]) -> str:
    """Median, and the range that holds the middle 80%."""
    low, median, high = np.quantile(samples, [0.1, 0.5, 0.9])
    return f"median {median:6.2f} us (10 to 90%: {low:.2f} to {high:.2f})"


def empty_tasks(num_tasks: int, num_devices: int, rounds: int) -> list[float]:
    """Raw samples, after one warm-up."""
    backend = NullBackend()
    with Engine(chain(num_tasks, num_devices), backend) as engine:
        engine.submit().wait()
        if [task for task, _ in backend.started] != list(range(num_tasks)):
            sys.exit("the tasks of a chain did not run in order")
        samples = []
        for _ in range(rounds):
            backend.started.clear()
            samples.append(microseconds(lambda: engine.submit().wait(), num_tasks))
    return samples


@dataclass(frozen=True, eq=False)
class OpenVinoChain:
    """A chain of compiled models, by engine and by hand, on requests and tensors of their own."""

    engine: Engine
    slot: int
    requests: list[Any]
    answers: tuple[Any, Any]  # output tensors of the last model, by engine and by hand

    @staticmethod
    def of(core: Any, num_models: int, num_devices: int) -> OpenVinoChain:
        """Compile every model, and give both chains an input."""
        parameter = opset13.parameter([1], np.float32)
        node = parameter
        for _ in range(num_models):
            node = opset13.relu(node)
        model = ov.Model([opset13.result(node)], [parameter], "chain")
        graph, specs = graph_of(model), parse_devices(DEVICES)[:num_devices]
        for spec in specs:
            spec.register(core)
        rank = np.zeros(graph.num_ops, dtype=np.int64)
        rank[graph.topological_order] = np.arange(graph.num_ops)
        instances = instances_of(graph, rank % num_devices, copies=False)
        cut = cut_of(graph, instances, Partition(np.arange(num_models), num_models))
        submodels = SubmodelBuilder(model, cut).build()
        names = [specs[part.device].openvino_name for part in cut.subgraphs]
        compiled = [core.compile_model(sub.model, name) for sub, name in zip(submodels, names, strict=True)]
        backend = OpenVinoBackend(cut, submodels, lambda s: compiled[s])
        slot, given = backend.add_slot(), ov.Tensor(np.full(1, 7.0, dtype=np.float32))
        backend.slot(slot).give(cut.subgraphs[0].inputs[0].op, given)
        requests = [each.create_infer_request() for each in compiled]
        for request, before in zip(requests, [None, *requests], strict=False):
            request.set_input_tensor(0, before.get_output_tensor(0) if before is not None else given)
        answers = backend.slot(slot).tensor(cut.subgraphs[-1].outputs[0]), requests[-1].get_output_tensor(0)
        return OpenVinoChain(Engine(task_graph(cut, specs), backend), slot, requests, answers)

    def by_engine(self) -> None:
        """One run."""
        self.engine.submit(self.slot).wait()

    def by_hand(self) -> None:
        """Requests one after another, asynchronously."""
        for request in self.requests:
            request.start_async()
            request.wait()

    def in_one_thread(self) -> None:
        """Requests one after another, in the caller's thread."""
        for request in self.requests:
            request.infer(share_outputs=True)

    def check(self) -> None:
        """Exit unless both hand on what was given."""
        self.by_engine()
        self.by_hand()
        if any(answer.data.tolist() != [7.0] for answer in self.answers):
            sys.exit(f"a chain of Relus made {self.answers} of 7")


def openvino_tasks(num_models: int, num_devices: int, rounds: int) -> bool:
    """Print the figures of one chain; whether its bar was kept."""
    chained = OpenVinoChain.of(ov.Core(), num_models, num_devices)
    chained.check()
    ways = (chained.by_engine, chained.by_hand, chained.in_one_thread)
    samples: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for found, way in zip(samples, ways, strict=True):
            found.append(microseconds(way, num_models))
    chained.engine.close()
    print(f"{num_models} OpenVINO models, {num_devices} device(s) of one thread, per task:")
    for what, found in zip(("engine", "start_async + wait", "infer"), samples, strict=True):
        print(f"    {what:18s} {shown(found)}")
    engine_us, async_us, infer_us = (float(np.median(found)) for found in samples)
    print(f"    engine less start_async + wait: {engine_us - async_us:.1f} us (bar {OPENVINO_BAR_US:.0f} us)")
    bar = f" (bar {OPENVINO_BAR_US:.0f} us)" if num_devices == 1 else ", a change of thread at every task included"
    print(f"    engine less infer: {engine_us - infer_us:.1f} us{bar}")
    return engine_us - (infer_us if num_devices == 1 else async_us) <= OPENVINO_BAR_US


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=100_000)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print(machine())
    kept = True
    for num_devices in (1, 4):
        for num_tasks in [n for n in (100, 1000, 10_000, 100_000) if n <= options.largest]:
            samples = empty_tasks(num_tasks, num_devices, max(3, min(options.rounds, 300_000 // num_tasks)))
            kept &= float(np.median(samples)) <= EMPTY_BAR_US
            print(f"{num_tasks:7d} empty tasks, {num_devices} device(s): {shown(samples)} (bar {EMPTY_BAR_US:.0f} us)")
    for num_devices in (1, 2):
        kept &= openvino_tasks(options.models, num_devices, options.rounds)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
