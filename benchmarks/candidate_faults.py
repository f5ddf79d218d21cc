"""Whether a search survives candidates that crash or hang in the plugin: each is recorded with its reason.

A worker whose compilations go wrong for real (tests/runtime/measuring/faulty_worker.py) measures random placements of
a small model, of which every other one crashes, hangs, breaks off in the middle of an answer or takes all memory. A
fault is survived if its placement is recorded with the right reason, and the next one is measured in a new worker.

Usage: python benchmarks/candidate_faults.py [--candidates 100] [--limit 12] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import machine

from hsdag.evaluators.measured import MeasuredEvaluator
from hsdag.evaluators.recording import RecordingEvaluator
from hsdag.models import save_model_files
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.runtime.problems.plan import Plan
from hsdag.search.session import Session

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
FAULTY = Path(__file__).resolve().parent.parent / "tests" / "runtime" / "measuring" / "faulty_worker.py"
MEMORY_BYTES = 1.5e9
"""What the worker may take, so that the one that takes all does not need minutes."""
FAULTS = {
    "crash": "SIGSEGV",
    "abort": "SIGABRT",
    "exit": "exited with code 7",
    "hang": "no answer within",
    "half": "no answer within",
    "eat": "of memory",
}
"""Faults, and what the reason of each has to say."""


def survived(fault: str, model: Path, count: int, limit_s: float, rng: np.random.Generator) -> int:
    """How many of ``count`` faulty candidates were recorded, and followed by one that was measured."""
    devices, command = resolve_devices(DEVICES, None), (sys.executable, str(FAULTY), fault, "2")
    with Session(model, devices, worker_command=command, candidate_limit_s=limit_s) as session:
        session.client.memory_bytes = MEMORY_BYTES
        problem = session.problem()
        recorder = RecordingEvaluator(MeasuredEvaluator(problem, devices.placed, session.runner))
        session.client.restart()  # a worker that has compiled nothing
        found, drawn = 0, dict[Plan, None]()
        while len(drawn) < 2 * count:  # none is compiled twice, and none is of one device
            plan = Plan(rng.integers(0, 2, problem.num_units))
            drawn |= {plan: None} if plan.is_split else {}
        plans = iter(drawn)
        for sound, faulty in zip(plans, plans, strict=True):
            (first,), (second,) = recorder.evaluate([sound]), recorder.evaluate([faulty])
            is_survived = first.failure is None and FAULTS[fault] in (second.failure or "")
            found += is_survived
            if not is_survived:
                print(f"{fault}: a sound candidate gave {first}, a faulty one {second}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=100, help="that are faulty, as many as are sound")
    parser.add_argument("--limit", type=float, default=12.0, help="seconds after which a candidate hangs")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(machine())
    found, rng = 0, np.random.default_rng(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        model = save_model_files("tiny_resnet", Path(folder) / "model.xml")
        for number, fault in enumerate(FAULTS):
            bounds = (arguments.candidates * (number + k) // len(FAULTS) for k in (0, 1))
            begin, end = bounds
            count = survived(fault, model, end - begin, arguments.limit, rng)
            print(f"{fault}: {count} of {end - begin}", flush=True)
            found += count
    print(f"{found} of {arguments.candidates} crashing or hanging candidates survived")
    return 0 if found == arguments.candidates else 1


if __name__ == "__main__":
    sys.exit(main())
