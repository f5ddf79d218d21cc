"""Language models over two devices that hold them only together: where they are cut, and what each device holds.

Each model is placed with 0.7 times the memory that its weights and largest state take on each device. The placement is
then compiled in a process of its own, which counts the submodels and the memory of each device for weights: what the
GPU plugin says that it holds before the first inference; for devices over the CPU plugin the memory of a process that
compiles and runs the parts of one device alone, less what such processes take beside weights, which the two parts tell
together with the whole model. Beside it the rival: HETERO with its policy PIPELINE_PARALLEL.

Exit status 1 where a device is empty, where there are more submodels than devices, or where a device holds over 5%
more or less than was promised. Where the CPU plugin holds copies of weights in other forms, the figure says so.

Usage: python benchmarks/language_models.py [--devices GPU.0,GPU.1] [--models stateful-llama-int8,...]
       [--tokens 64,1+64@3] [--method auto] [--budget 60s]
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from machine import machine

from hsdag import Placement, place
from hsdag.ir.build import graph_of
from hsdag.ir.device import parse_devices
from hsdag.ir.held import held_bytes
from hsdag.ir.reader import load_model
from hsdag.ir.scenario import parse_scenarios
from hsdag.models import save_model_files
from hsdag.runtime.measuring.inferences import Exercise, make_courses
from hsdag.runtime.openvino_backend.compiling import plan_cut
from hsdag.runtime.openvino_backend.submodels import SubmodelBuilder
from hsdag.runtime.platforms.devices import DeviceSet, reduces_precision
from hsdag.search.session import Session

SHARE = 0.7
"""Memory of a device over the weights and the largest state of the model."""

CLOSE = 0.05
CPUS = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "AB")
MODELS = "stateful-llama-int8,stateful-moe-int8"


def process_bytes() -> float:
    """Memory of this process that is in no file."""
    gc.collect()
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"Anonymous:\s+(\d+)", text)
    return 1024.0 * int(found[1]) if found else 0.0


def gpu_bytes(core: Any, names: list[str]) -> dict[str, float]:
    """What the GPU plugin holds on each device."""
    statistics = {name: core.get_property(name, "GPU_MEMORY_STATISTICS") for name in names}
    return {name: float(sum(int(size) for size in of.values())) for name, of in statistics.items()}


def run(compiled: Any, model: ov.Model, tokens: str) -> None:
    """Run every scenario once."""
    scenarios = [scenario.of(model) for scenario in parse_scenarios((), tokens)]
    courses = make_courses(model, scenarios, 0, None)
    request = compiled.create_infer_request()
    Exercise(request, model.inputs, courses, stateful=True).outputs(model.outputs)


def measure(path: Path, placement_file: Path, what: str, tokens: str) -> dict[str, Any]:
    """In a process of its own: compile the placement, the rival, or the parts of one device, and see what it takes."""
    core, placement = ov.Core(), Placement.load(placement_file)
    specs = {record.name: record.spec() for record in placement.devices}
    for spec in specs.values():
        spec.register(core)
    model = load_model(path, dynamic=True)
    names = [specs[name].openvino_name for name in placement.used_devices]
    if what == "placement":
        compiled = placement.compile(core, model)
    elif what == "rival":
        policy = {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"}
        compiled = core.compile_model(model, "HETERO:" + ",".join(names), policy)
    else:
        return {"bytes": part_bytes(core, model, placement, what.removeprefix("part:"))}
    is_told = all("GPU" in name for name in names)
    compiled_bytes = gpu_bytes(core, names) if is_told else None
    run(compiled, model, tokens)
    after = {"run_bytes": gpu_bytes(core, names)} if is_told else {}
    return {"submodels": int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")), "bytes": compiled_bytes, **after}


def part_bytes(core: Any, model: ov.Model, placement: Placement, device: str) -> float:
    """Bytes that compiling adds to the process: the parts of a device, or with "" the whole model on the first one."""
    graph = graph_of(model)
    names = [record.name for record in placement.devices]
    used = device or placement.used_devices[0]
    spec = next(record.spec() for record in placement.devices if record.name == used)
    models = [model]
    if device:
        on = np.array([names.index(name) for name in placement.devices_of(graph)])
        cut = plan_cut(graph, on, len(names)).cut
        built = SubmodelBuilder(model, cut).build()
        models = [b.model for b, part in zip(built, cut.subgraphs, strict=True) if names[part.device] == device]
    before = process_bytes()
    compiled = [core.compile_model(each, spec.openvino_name) for each in models]
    requests = [each.create_infer_request() for each in compiled]
    for request in requests:
        for port in request.model_inputs:  # weights are packed by the first inference, of four tokens here
            sizes = [dim.get_length() if dim.is_static else 4 if k else 1 for k, dim in enumerate(port.partial_shape)]
            request.set_tensor(port, ov.Tensor(port.element_type, ov.Shape(sizes)))
        request.infer()
    return process_bytes() - before


def measured(*words: object) -> dict[str, Any]:
    """The answer of ``measure`` in a new process."""
    command = [sys.executable, __file__, "--measure", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"failure": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def judge(name: str, path: Path, folder: Path, options: argparse.Namespace) -> bool:
    """Place a model, print what its devices hold beside the rival's, and whether it is as promised."""
    devices = parse_devices(options.devices)
    scenarios = parse_scenarios((), options.tokens)
    with Session(path, DeviceSet(devices, ()), scenarios=scenarios) as session:
        limit = int(SHARE * float(session.graph.weight_bytes.sum()))
    limited = [*(spec.name for spec in devices), *dict.fromkeys(spec.plugin for spec in devices if spec.is_added)]
    memory = ",".join(f"{each}={limit}" for each in limited)
    given = {"method": options.method, "budget": options.budget, "candidate_limit": "300s"}
    given |= {"tokens": options.tokens, "memory": memory}
    outcome = place(path, options.devices, **given)
    file = folder / f"{name}.placement.json"
    outcome.save(file)
    found, rival = (measured(path, file, what, options.tokens) for what in ("placement", "rival"))
    holds = found.get("bytes") or on_cpus(path, file, outcome.used_devices, options.tokens)
    weights = promised_bytes(path, outcome.placement)
    print(f"{name}: {outcome.sentence}")
    print(f"  {found['submodels']} submodels on {len(outcome.used_devices)} devices of {len(devices)}")
    is_close = True
    for device, promised in weights.items():
        off = holds[device] / promised - 1
        is_close &= abs(off) <= CLOSE
        told = f"weights of {promised / 1e6:.1f} MB promised, {holds[device] / 1e6:.1f} MB held, {100 * off:+.1f}%"
        print(f"  {device}: {told}")
    print(f"  after a run: {found.get('run_bytes', 'not known')}")
    print(f"  HETERO's PIPELINE_PARALLEL: {rival}")
    none_empty = len(outcome.used_devices) == len(devices)
    return is_close and none_empty and found["submodels"] == len(devices)


def promised_bytes(path: Path, placement: Placement) -> dict[str, float]:
    """Weights by used device."""
    graph, used = graph_of(load_model(path, dynamic=True)), list(placement.used_devices)
    specs = [record.spec() for record in placement.devices if record.name in used]
    widens = np.array([not reduces_precision((spec,)) for spec in specs])
    on = np.array([used.index(name) for name in placement.devices_of(graph)])
    return dict(zip(used, held_bytes(graph, on, widens).tolist(), strict=True))


def on_cpus(path: Path, file: Path, used: Sequence[str], tokens: str) -> dict[str, float]:
    """Bytes of weights on each of two devices over the CPU plugin.

    A process takes something beside weights: what those of the parts take more, together, than that of the whole model.
    """
    taken = {name: measured(path, file, f"part:{name}", tokens)["bytes"] for name in ("", *used)}
    beside = (sum(taken[name] for name in used) - taken[""]) / max(len(used) - 1, 1)
    return {name: taken[name] - beside for name in used}


def main() -> int:
    """Judge every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default=CPUS)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--tokens", default="64,1+64@3")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        path, file, what, tokens = options.measure
        print(json.dumps(measure(Path(path), Path(file), what, tokens)))
        return 0
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for name in options.models.split(","):
            path = save_model_files(name, Path(folder) / f"{name}.xml")
            results.append(judge(name, path, Path(folder), options))
    print(f"{sum(results)} of {len(results)} models as promised")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
