"""Whether answers keep --max-difference: their outputs, computed again by plain OpenVINO.

Device A computes in single precision, B keeps key-value caches in 8 bits and computes in bf16 where the processor can.
The answer is compared with the CPU in single precision. Exit status 1 where one breaks its limit.

    python benchmarks/limits.py [--budget 10s] [--limits 3e-4 1e-3 1e-2]
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
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.models import save_model_files
from hsdag.runtime.measuring.inferences import Course, make_courses

MODELS = [f"tiny_stateful_{kind}" for kind in ("llama_fp16", "llama_int8", "llama_int4", "moe_int4")]
ONE, TOKENS = "INFERENCE_NUM_THREADS=1", "16,1+32"
UNLIKE = (
    f"A=CPU[{ONE};INFERENCE_PRECISION_HINT=f32;KV_CACHE_PRECISION=f32;DYNAMIC_QUANTIZATION_GROUP_SIZE=0],"
    f"B=CPU[{ONE};INFERENCE_PRECISION_HINT=bf16;KV_CACHE_PRECISION=u8]"
)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


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


def keeps_difference(path: Path, limit: float, budget: str) -> bool:
    """Whether the outputs of the answer are within the limit of the CPU's, relative to the largest value."""
    answer = hsdag.place(path, UNLIKE, tokens=TOKENS, max_difference=limit, budget=budget)
    core, model = ov.Core(), ov.Core().read_model(path)
    courses = make_courses(model, parse_scenarios((), TOKENS), 0, None)
    expected = outputs(core.compile_model(model, "CPU", EXACT), model, courses)
    found = outputs(answer.placement.compile(core, model), model, courses)
    apart = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True))
    on_b = sum(device == "B" for device in answer.placement.affinity.values())
    print(f"{path.stem}, limit {limit:.1e}: differs by {apart:.2e}, {on_b} ops on B", flush=True)
    return apart <= limit


def main() -> int:
    """Print a line for each run, and how many keep their limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="10s")
    parser.add_argument("--limits", type=float, nargs="*", default=[3e-4, 1e-3, 1e-2])
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        kept = []
        for model in MODELS:
            path = save_model_files(model, Path(name) / f"{model}.xml")
            kept += [keeps_difference(path, limit, given.budget) for limit in given.limits]
    print(f"{sum(kept)} of {len(kept)} runs keep their limits")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
