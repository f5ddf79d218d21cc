"""Whether answers keep their limits: --memory by the simulated peak, --max-difference by outputs computed again.

Memory: both devices get a share of what the whole model peaks at; the answer's peak is simulated again from the
profile in its run folder. Differences: device A computes in single precision, B keeps key-value caches in 8 bits and
computes in bf16 where the processor can; the answer, compiled by plain OpenVINO, is compared with the CPU in single
precision. Exit status 1 where an answer breaks a limit.

    python benchmarks/limits.py [--budget 10s] [--shares 0.95 0.8 0.65] [--limits 3e-4 1e-3 1e-2]
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
from hsdag.ir.errors import SearchError
from hsdag.ir.graph.scenario import parse_scenarios
from hsdag.models import save_model_files
from hsdag.placing.run_folder import RunFolder
from hsdag.runtime.measuring.inferences import Course, make_courses
from hsdag.scoring.memory import MemoryCheck

WITH_MEMORY = ["tiny_resnet", "tiny_inception", "tiny_bert", "tiny_llama"]
WITH_DIFFERENCE = [f"tiny_stateful_{kind}" for kind in ("llama_fp16", "llama_int8", "llama_int4", "moe_int4")]
ONE, TOKENS = "INFERENCE_NUM_THREADS=1", "16,1+32"
ALIKE = ",".join(f"{name}=CPU[{ONE};INFERENCE_PRECISION_HINT=f32]" for name in "AB")
UNLIKE = (
    f"A=CPU[{ONE};INFERENCE_PRECISION_HINT=f32;KV_CACHE_PRECISION=f32;DYNAMIC_QUANTIZATION_GROUP_SIZE=0],"
    f"B=CPU[{ONE};INFERENCE_PRECISION_HINT=bf16;KV_CACHE_PRECISION=u8]"
)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def peaks(run: Path, placement: hsdag.Placement | None = None) -> np.ndarray:
    """[D] bytes of a placement, or of the whole model on the first device."""
    kept = RunFolder.load(run)
    assert kept.problem.costs is not None
    judge = MemoryCheck(kept.problem.costs, kept.problem.semantics)
    plan = None if placement is None else kept.plan_of(placement)
    if plan is None:
        return judge.peak_bytes(np.zeros(kept.problem.num_units, dtype=np.int64))
    return judge.peak_bytes(plan.placement, plan.order)


def keeps_memory(path: Path, run: Path, share: float, budget: str) -> bool:
    """Whether the answer for a share of the whole model's peak keeps it; no answer breaks nothing."""
    whole = run.with_suffix(".whole")
    if not whole.exists():
        hsdag.place(path, ALIKE, method="met", budget=budget, run_folder=whole)
    limit = int(share * float(peaks(whole).max()))
    own, memory = run.with_suffix(f".{share}"), ",".join(f"{device}={limit}" for device in ("A", "B", "CPU"))
    try:
        answer = hsdag.place(path, ALIKE, budget=budget, memory=memory, run_folder=own)
    except SearchError as error:
        print(f"{path.stem}, {share:.2f} of the peak: no answer: {error}"[:160], flush=True)
        return True
    found = peaks(own, answer.placement)
    print(f"{path.stem}, {share:.2f} of the peak: {found / 1e3} kB of {limit / 1e3:.1f}", flush=True)
    return bool((found <= limit).all())


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
    parser.add_argument("--shares", type=float, nargs="*", default=[0.95, 0.8, 0.65])
    parser.add_argument("--limits", type=float, nargs="*", default=[3e-4, 1e-3, 1e-2])
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = [
            keeps_memory(save_model_files(model, folder / f"{model}.xml"), folder / model, share, given.budget)
            for model in WITH_MEMORY
            for share in given.shares
        ]
        kept += [
            keeps_difference(save_model_files(model, folder / f"{model}.xml"), limit, given.budget)
            for model in WITH_DIFFERENCE
            for limit in given.limits
        ]
    print(f"{sum(kept)} of {len(kept)} runs keep their limits")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
