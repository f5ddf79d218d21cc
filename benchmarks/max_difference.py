"""Whether every answer keeps --max-difference over devices of unlike precision; outputs are computed again here.

Device A computes in single precision throughout; B keeps the key-value cache of decoders in 8 bits, which the CPU does
by default, and computes in bf16 where the processor has instructions for it. Each run is one model, limit and seed.
The outputs of the answer, compiled by plain OpenVINO, are compared with those of the CPU in single precision: the
largest difference over the largest value of an output. Exit status 1 where one answer differs by more than its limit.

    python benchmarks/max_difference.py [--budget 20s] [--limits 3e-4 1e-3 3e-3 1e-2] [--models NAME ...] [--devices D]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
from machine import machine

import hsdag
from hsdag.ir.scenario import parse_scenarios
from hsdag.models import save_model_files
from hsdag.runtime.measuring.inferences import Course, make_courses

MODELS = [f"tiny_stateful_{kind}" for kind in ("llama_fp16", "llama_int8", "llama_int4", "moe_fp16", "moe_int4")]
ONE = "INFERENCE_NUM_THREADS=1"
DEVICES = (
    f"A=CPU[{ONE};INFERENCE_PRECISION_HINT=f32;KV_CACHE_PRECISION=f32;DYNAMIC_QUANTIZATION_GROUP_SIZE=0],"
    f"B=CPU[{ONE};INFERENCE_PRECISION_HINT=bf16;KV_CACHE_PRECISION=u8]"
)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
TOKENS = "16,1+32"


def outputs(compiled: ov.CompiledModel, model: ov.Model, courses: tuple[Course, ...]) -> list[np.ndarray]:
    """All outputs of all inferences, each course from an empty state."""
    request, found = compiled.create_infer_request(), []
    for course in courses:
        request.reset_state()
        for tensors in course.inferences:
            for port, tensor in zip(model.inputs, tensors, strict=True):
                request.set_tensor(port, tensor)
            request.infer()
            found += [np.array(request.get_tensor(port).data) for port in model.outputs]
    return found


def run(path: Path, devices: str, limit: float, seed: int, budget: str) -> tuple[str, int, float, float]:
    """The answer's candidate, its ops on B, and the differences of the answer and of B alone."""
    answer = hsdag.place(path, devices, tokens=TOKENS, max_difference=limit, seed=seed, budget=budget)
    core, model = ov.Core(), ov.Core().read_model(path)
    courses = make_courses(model, parse_scenarios((), TOKENS), seed, None)
    expected = outputs(core.compile_model(model, "CPU", EXACT), model, courses)
    apart = []
    on_b = next(device for device in answer.placement.devices if device.name == "B")
    for compiled in (answer.placement.compile(core, model), core.compile_model(model, "CPU", dict(on_b.properties))):
        pairs = zip(outputs(compiled, model, courses), expected, strict=True)
        apart.append(max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs))
    name = next(row.name for row in answer.rows if row.is_answer)
    return name, sum(device == "B" for device in answer.placement.affinity.values()), *apart


def main() -> int:
    """Print a line for each run, and how many keep their limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="20s")
    parser.add_argument("--limits", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3, 1e-2])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--devices", default=DEVICES)
    given = parser.parse_args()
    print(machine())
    print(
        f"{'model':28s} {'limit':>8s} {'seed':>4s} {'answer':>12s} {'ops on B':>8s} {'differs by':>10s} {'B alone':>8s}"
    )
    held = total = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            path = save_model_files(name, Path(folder) / f"{name}.xml")
            for limit in given.limits:
                answer, on_b, apart, alone = run(path, given.devices, limit, total, given.budget)
                line = f"{name:28s} {limit:8.1e} {total:4d} {answer:>12s} {on_b:8d} {apart:10.2e} {alone:8.1e}"
                print(line if apart <= limit else f"{line}  BROKEN", flush=True)
                held, total = held + (apart <= limit), total + 1
    print(f"{held} of {total} answers keep their limit")
    return 0 if held == total else 1


if __name__ == "__main__":
    sys.exit(main())
