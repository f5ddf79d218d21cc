"""Placements in plain OpenVINO programs: whether they compute the same, and whether they are as fast as in hsdag.

Parts: hetero (random placements over two CPU devices, in the folder of --format openvino, against Placement.compile,
with the submodels that are predicted), real (the same of models of other packages, see real_models.py), threads
(inferences of four threads through the one op, a tenth of them cancelled), divided (an encoder divided over two CPU
devices, in the op and under the Python executor, in turns), copies (ResNet-50 on two devices, likewise).

Usage: python benchmarks/anywhere.py [PART ...] [--models NAME ...] [--placements N]
       [--real-models NAME,...] [--limit S] [--inferences N] [--seconds S]
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
from machine import ONE, options
from overlap import network
from real_model_sources import all_sources
from real_models import KEEPS_STATE, Trial, answered, compiled_as_predicted

from hsdag import Placement, compile_model, export
from hsdag.base.errors import HsdagError
from hsdag.commands.shard import divide
from hsdag.ir.device import hetero_properties, parse_devices
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray
from hsdag.ir.graph.reader import load_model
from hsdag.models import MODELS, save_model_files
from tests.placements import by_hand, halves

DEVICES = parse_devices(f"CPU_0=CPU[{ONE}],CPU_1=CPU[{ONE}]")
PARTS = ("hetero", "real", "threads", "divided", "copies")


def compiled_in(folder: Path, target: str, properties: dict[str, Any] | None = None) -> Any:
    """As a program compiles it that loads the library."""
    plugins = folder / "plugins.xml"
    core = ov.Core(plugins) if plugins.exists() else ov.Core()
    core.add_extension(folder / "libhsdag.so")
    return core.compile_model(folder / "model.xml", target, properties or {})


def inputs_of(model: ov.Model, seed: int = 0) -> list[Any]:
    rng, found = np.random.default_rng(seed), []
    for port in model.inputs:
        dtype, shape = port.get_element_type().to_dtype(), port.get_shape()
        found.append(rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype))
    return found


def hetero(names: list[str], count: int, folder: Path) -> None:
    right = wrong = 0
    for name in names:
        path = save_model_files(name, folder / f"{name}.xml")
        try:
            model = load_model(path)
        except HsdagError:
            continue  # whose shapes are dynamic: those are generated with, in tests/integrations
        graph, inputs = graph_of(model), inputs_of(model)
        units = placement_units(graph)
        for k in range(count):
            rng = random.Random(k)
            labels = [rng.randrange(2) for _ in range(units.graph.num_ops)]
            placed = np.array([labels[u] for u in units.partition.labels])
            why = other_in_folder(model, graph, placed, inputs, folder / f"{name}-{k}")
            right, wrong = right + (not why), wrong + bool(why)
            if why:
                print(f"{name}, placement {k}: {why}")
    print(f"hetero: {right} placements right, {wrong} with other submodels or outputs")


def other_in_folder(model: ov.Model, graph: ComputationGraph, placed: IntArray, inputs: list[Any], folder: Path) -> str:
    """In what a model that is placed [N] and exported to ``folder`` differs from ``Placement.compile``, or nothing.

    Both have to have the submodels that are predicted.
    """
    placement = by_hand(graph, DEVICES, [DEVICES[d].name for d in placed.tolist()])
    export(placement, "openvino", folder, model)
    given = hetero_properties(DEVICES)  # as run.py has them: without, HETERO gives devices other threads
    ways = lambda: placement.compile(ov.Core(), model), lambda: compiled_in(folder, "HETERO:CPU_0,CPU_1", given)
    try:
        compiled = [compiled_as_predicted(way, graph, placed) for way in ways]
    except HsdagError as error:
        return str(error)
    expected, found = (each(inputs).to_tuple() for each in compiled)
    equal = (np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(found, expected, strict=True))
    return "" if all(equal) else "other outputs"


def real(names: list[str], count: int, limit_s: float) -> None:
    models = right = wrong = 0
    for source in (s for s in all_sources() if s.shipped and s.name.startswith(tuple(names))):
        try:
            whys = answered(real_model, source, count, limit_s=limit_s)
        except HsdagError as error:
            if KEEPS_STATE in str(error):
                continue
            whys = [str(error)]
        models, right, wrong = models + 1, right + whys.count(""), wrong + len(whys) - whys.count("")
        print(f"{source.name}: {whys.count('')} of {len(whys)} right", *filter(None, whys), sep="\n    ", flush=True)
    print(f"real: {right} placements of {models} models right, {wrong} with other submodels or outputs")


def real_model(name: str, count: int) -> None:
    """Print in what placements of a model of another package differ, as JSON; what libraries print goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    trial = Trial(next(source for source in all_sources() if source.name == name))
    whys = list[str]()
    for k, placed in enumerate(trial.placements(count)):
        with tempfile.TemporaryDirectory() as folder:
            whys.append(other_in_folder(trial.model, trial.graph, placed, trial.inputs, Path(folder, str(k))))
    os.write(answers, json.dumps(whys).encode())


def threads(inferences: int, folder: Path) -> None:
    model = load_model(save_model_files("tiny_resnet", folder / "tiny.xml"))
    export(halves(graph_of(model), DEVICES, executor="work-conserving"), "openvino", folder / "threads", model)
    compiled = compiled_in(folder / "threads", "CPU", {"NUM_STREAMS": 4})
    whole = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    inputs = [inputs_of(model, seed) for seed in range(8)]
    right = [np.array(whole(each)[0]) for each in inputs]
    counts = {"right": 0, "wrong": 0, "cancelled": 0}

    def infer(seed: int, number: int) -> None:
        rng, request = random.Random(seed), compiled.create_infer_request()
        for _ in range(number):
            k = rng.randrange(8)
            request.start_async(inputs[k])
            if rng.random() < 0.1:
                request.cancel()
            try:
                request.wait()
                what = "right" if np.allclose(request.get_output_tensor(0).data, right[k], 1e-4, 1e-5) else "wrong"
            except RuntimeError:
                what = "cancelled"
            counts[what] += 1

    for number in (inferences // 40, inferences // 4):
        started = [threading.Thread(target=infer, args=(seed, number)) for seed in range(4)]
        before = psutil.Process().memory_info().rss
        for each in started:
            each.start()
        for each in started:
            each.join()
    grown = psutil.Process().memory_info().rss - before
    print(f"threads: {counts}, {grown / 1e6:.1f} MB more than after the first {inferences // 10}")


def in_turns(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    return {name: statistics.median(each) for name, each in found.items()}


def divided(seconds: float, folder: Path) -> None:
    path = network("encoder", 4, folder / "encoder.xml")
    model, placement = divide(path, ",".join(f"CPU_{k}=CPU[{ONE}]" for k in range(2)), None, None, [], {})
    export(placement, "openvino", folder / "divided", model)
    inputs = inputs_of(model)
    ours, op = compile_model(model, placement), compiled_in(folder / "divided", "CPU")
    requests = {"executor": ours.create_infer_request(), "op": op.create_infer_request()}
    for request in requests.values():
        request.infer(inputs)
    taken = {name: _timed(lambda request=request: request.infer()) for name, request in requests.items()}
    found = in_turns(taken, max(int(seconds / 0.1), 6))
    print(f"divided: {found['op'] * 1e3:.2f} ms in the op, {found['op'] / found['executor']:.3f} times the executor")


def _timed(run: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        begin_s = time.perf_counter()
        run()
        return time.perf_counter() - begin_s

    return timed


def copies(seconds: float, folder: Path) -> None:
    model = load_model(save_model_files("resnet50", folder / "resnet50.xml"))
    placed = halves(graph_of(model), DEVICES, executor="work-conserving").model_dump()
    each = [{"device": spec.name, "requests": 2} for spec in DEVICES]
    placement = Placement.model_validate(placed | {"version": 3, "affinity": {}, "copies": each})
    export(placement, "openvino", folder / "copies", model)
    ours, op = compile_model(model, placement), compiled_in(folder / "copies", "CPU", {"NUM_STREAMS": 4})
    inputs = inputs_of(model)
    runs = {name: _rate(compiled, inputs, 4, seconds / 6) for name, compiled in (("executor", ours), ("op", op))}
    found = in_turns(runs, 3)
    print(f"copies: {found['op']:.1f} inferences/s in the op, {found['op'] / found['executor']:.3f} times the executor")


def _rate(compiled: Any, inputs: list[Any], in_flight: int, seconds: float) -> Callable[[], float]:
    requests = [compiled.create_infer_request() for _ in range(in_flight)]

    def rate() -> float:
        ends_s, count = time.perf_counter() + seconds, 0
        for request in requests:
            request.start_async(inputs)
        while time.perf_counter() < ends_s:
            for request in requests:
                request.wait()
                request.start_async(inputs)
                count += 1
        for request in requests:
            request.wait()
        return count / seconds

    return rate


def main() -> None:
    given = options(
        __doc__,
        PARTS,
        models=[each.name for each in MODELS],
        real_models=("", "names, or beginnings of names, separated by commas"),
        placements=6,
        limit=(900.0, "seconds for one model of other packages"),
        inferences=20_000,
        seconds=30.0,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "hetero" in given.parts:
            hetero(given.models, given.placements, folder)
        if "real" in given.parts:
            real(given.real_models.split(","), given.placements, given.limit)
        if "threads" in given.parts:
            threads(given.inferences, folder)
        if "divided" in given.parts:
            divided(given.seconds, folder)
        if "copies" in given.parts:
            copies(given.seconds, folder)


if __name__ == "__main__":
    main()
