"""Whether every answer keeps --memory by the profile's own measure: the simulated peak of one inference.

Both devices get a share of what the whole model peaks at. The peak of the answer is simulated again from the profile in
its run folder. Exit status 1 where a device of an answer exceeds its limit.

    python benchmarks/memory_limits.py [--budget 10s] [--shares 0.95 0.8 0.65] [--models NAME ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import machine

import hsdag
from hsdag.evaluators.memory import MemoryJudge
from hsdag.ir.errors import SearchError
from hsdag.models import save_model_files
from hsdag.search.kept_run import KeptRun

MODELS = ["tiny_resnet", "tiny_inception", "tiny_bert", "tiny_llama"]
DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "AB")


def peaks(run: Path, placement: hsdag.Placement | None = None) -> np.ndarray:
    """[D] bytes of a placement, or of the whole model on the first device."""
    kept = KeptRun.load(run)
    assert kept.problem.costs is not None
    judge = MemoryJudge(kept.problem.costs, kept.problem.semantics)
    plan = None if placement is None else kept.plan_of(placement)
    if plan is None:
        return judge.peak_bytes(np.zeros(kept.problem.num_units, dtype=np.int64))
    return judge.peak_bytes(plan.placement, plan.order)


def main() -> int:
    """Print a line for each run, and how many keep their limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="10s")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.95, 0.8, 0.65])
    parser.add_argument("--models", nargs="+", default=MODELS)
    given = parser.parse_args()
    print(machine())
    print(f"{'model':16s} {'share':>5s} {'limit kB':>9s} {'A kB':>9s} {'B kB':>9s}")
    held = answers = total = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            path, run = save_model_files(name, Path(folder) / f"{name}.xml"), Path(folder) / f"{name}.run"
            hsdag.place(path, DEVICES, method="met", budget=given.budget, run_folder=run)
            whole = float(peaks(run).max())
            for share in given.shares:
                limit = int(share * whole)
                memory = ",".join(f"{device}={limit}" for device in ("A", "B", "CPU"))
                total, run = total + 1, Path(folder) / f"{name}.{share}.run"
                try:
                    answer = hsdag.place(path, DEVICES, budget=given.budget, memory=memory, run_folder=run)
                except SearchError as error:
                    print(f"{name:16s} {share:5.2f} {limit / 1e3:9.1f} no answer: {error}"[:160], flush=True)
                    continue
                found = peaks(run, answer.placement)
                print(
                    f"{name:16s} {share:5.2f} {limit / 1e3:9.1f} {found[0] / 1e3:9.1f} {found[1] / 1e3:9.1f}",
                    flush=True,
                )
                held, answers = held + bool((found <= limit).all()), answers + 1
    print(f"{held} of {answers} answers keep their limits; {total - answers} of {total} runs found none")
    return 0 if held == answers else 1


if __name__ == "__main__":
    sys.exit(main())
