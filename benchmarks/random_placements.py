"""Whether random placements over several kinds of devices compute what the CPU does, under both executors.

Every placement is compiled and run in a worker process, as a search does it; its outputs are compared with the CPU's in
single precision. Prints how many were right, how many were refused and why, and the largest difference relative to the
largest value. Exit status 1 when one is wrong, or takes the process down.

Usage: tests/software_gpu/run .venv/bin/python benchmarks/random_placements.py [--models tiny_resnet,...]
           [--devices CPU,GPU.0,GPU.1] [--placements 40]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from machine import machine

from hsdag.commands.profile import random_placements
from hsdag.ir.processes import CandidateFailed
from hsdag.models import list_models, save_model_files
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.platforms.devices import DeviceSet, resolve_devices
from hsdag.runtime.problems.plan import Plan
from hsdag.search.options import EXECUTION
from hsdag.search.session import Session

F32 = "[INFERENCE_PRECISION_HINT=f32]"
TOLERANCE = 1e-3


def check(path: Path, devices: DeviceSet, count: int) -> bool:
    """Whether all placements of a model are right, or refused with a reason."""
    reasons: Counter[str] = Counter()
    right, worst, is_well = 0, 0.0, True
    with Session(path, devices) as session:
        problem = session.problem()
        for k, placement in enumerate(random_placements(problem, count, np.random.default_rng(0))):
            for executor in EXECUTION:
                key = f"{executor} {k}"
                try:
                    session.runner.open("cpu", Candidate("CPU", properties={"INFERENCE_PRECISION_HINT": "f32"}))
                    session.runner.open(key, session.placed(problem, Plan(placement), executor))
                    difference = session.runner.difference(key, "cpu")["max_relative"]
                    session.runner.close(key)
                except CandidateFailed as failure:
                    reasons[failure.reason] += 1
                    is_well = is_well and not failure.lost_worker
                    continue
                found = np.inf if difference is None else difference
                worst, right = max(worst, found), right + (found <= TOLERANCE)
                if found > TOLERANCE:
                    print(f"  placement {k} under {executor}: outputs differ by {found:.1e}")
    tried, refused = count * len(EXECUTION), sum(reasons.values())
    print(f"{path.stem}: {right} of {tried} right, {refused} refused, largest difference {worst:.1e}", flush=True)
    for reason, times in reasons.most_common():
        print(f"  {times} times: {reason}")
    return is_well and right + refused == tried


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tiny = ",".join(spec.name for spec in list_models() if spec.is_tiny)
    parser.add_argument("--models", default=tiny)
    parser.add_argument("--devices", default=f"CPU{F32},GPU.0{F32},GPU.1{F32}")
    parser.add_argument("--placements", type=int, default=40)
    arguments = parser.parse_args()
    print(machine())
    devices = resolve_devices(arguments.devices, None)
    with tempfile.TemporaryDirectory() as folder:
        models = [save_model_files(name, Path(folder) / f"{name}.xml") for name in arguments.models.split(",")]
        met = [check(path, devices, arguments.placements) for path in models]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
