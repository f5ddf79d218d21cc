"""HSDAG on two unequal devices: where its policy ends, and how it gets there.

FAST has two threads, SLOW one. The policy starts uniform. After the search, the placement that the trained policy finds
most probable is measured in common rounds with every single device, beside the fastest split placement it sampled.
Prints both ratios to the best single device, and the share of units on FAST over the search. Exit status 1 when the
policy's choice is more than 3% slower than the best single device, or the share does not rise.

Usage: python benchmarks/unequal_devices.py [--model resnet50] [--budget 120s] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from machine import machine

from hsdag.evaluators.measured import MeasuredEvaluator
from hsdag.evaluators.recording import Budget, RecordingEvaluator
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.models import save_model_files
from hsdag.placers.incumbent import Limits
from hsdag.placers.learned.hsdag import HsdagPlacer
from hsdag.placers.registry import find_preset
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.runtime.problems.plan import Plan
from hsdag.search.final import FinalResult, final_comparison
from hsdag.search.options import parse_duration
from hsdag.search.run_folder import RunFolder, RunRecord
from hsdag.search.session import Session
from hsdag.search.verifying import Check

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
REACH = 0.97
"""Best single device's latency over that of the policy's choice, at least."""


def search(session: Session, folder: Path, budget_s: float, config: HsdagConfig, seed: int) -> tuple[FinalResult, list]:
    """Train a policy on measured latencies; compare its choice and its best split with the single devices."""
    problem = session.problem()
    record = RunRecord(
        model=session.model_record,
        devices=session.device_records,
        method="hsdag",
        preset="benchmark",
        seed=seed,
        objective="latency",
        num_units=problem.num_units,
    )
    inner = MeasuredEvaluator(problem, session.devices.placed, session.runner)
    recorder = RecordingEvaluator(inner, Budget(seconds=budget_s), RunFolder.create(folder / "run", record))
    placer = HsdagPlacer(config)
    placer.search(problem, recorder, Limits(seed=seed))
    best = next(e.plan for e in recorder.best(len(recorder.events)) if e.plan.is_split)
    result = final_comparison(
        session.runner,
        {
            "policy's choice": session.placed(problem, Plan(placer.most_probable())),
            "best split sampled": session.placed(problem, best),
        },
        {spec.name: Candidate.on_device(spec) for spec in session.devices.all},
        {},
        Protocol(limit_s=25.0),
        Check.over(session.devices.all),
        rng=np.random.default_rng(seed),
    )
    return result, recorder.events


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", default="default")
    arguments = parser.parse_args()
    print(machine())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        model = save_model_files(arguments.model, Path(name) / f"{arguments.model}.xml")
        with Session(model, resolve_devices(DEVICES, None)) as session:
            config = find_preset("hsdag", arguments.preset).options
            budget_s = parse_duration(arguments.budget)
            result, events = search(session, Path(name), budget_s, config, arguments.seed)
    assert result.best_single is not None
    for name, ratio in sorted(result.ratios.items(), key=lambda item: -item[1].value):
        median_ms, submodels = 1e3 * result.comparison.median_s(name), result.opened[name].submodels
        interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]"
        print(f"{name:20s} {median_ms:8.2f} ms  x{ratio.value:.3f} {interval}  submodels {submodels}")
    share = np.asarray([float((e.plan.placement == 0).mean()) for e in events if e.plan.is_split])
    quarters = [float(part.mean()) for part in np.array_split(share, 4)]
    reached, rises = result.ratios["policy's choice"].value, quarters[-1] > quarters[0]
    print(f"{len(events)} placements evaluated in {budget_s:.0f} s, {len(share)} of them split")
    print("share of units on FAST by quarters of the search: " + ", ".join(f"{q:.2f}" for q in quarters))
    print(f"policy's choice against {result.best_single}: {reached:.3f} (bar {REACH})")
    print(json.dumps({"ratio": reached, "bar": REACH, "share_by_quarter": quarters, "share_rises": rises}))
    return 0 if reached >= REACH and rises else 1


if __name__ == "__main__":
    sys.exit(main())
