"""Hybrid against measured reward: HSDAG on Inception-V3 and two unequal CPU devices, same seed.

The measured search evaluates --measured placements, each on the devices; the hybrid one profiles, simulates, and
measures the few that promise most. Both answers, the best split placements of both, and every single device are then
measured in common rounds. Prints evaluations, seconds, and the ratio of the two answers with its interval. Exit
status 1 when the hybrid's answer is slower beyond the interval, or took more than a twentieth of the evaluations.

Usage: python benchmarks/hybrid_cost.py [--model inception_v3] [--measured 300] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from machine import machine

from hsdag.models import save_model_files
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.latency import Protocol, compare
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.search.options import PlaceOptions
from hsdag.search.searching import search_placements
from hsdag.search.session import Session

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
SHARE = 1 / 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="inception_v3")
    parser.add_argument("--measured", type=int, default=300)
    parser.add_argument("--budget", type=float, default=580.0, help="seconds for each search")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(machine())
    torch.set_num_threads(1)
    candidates: dict[str, Candidate] = {}
    evaluations: dict[str, int] = {}
    best: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        model = save_model_files(arguments.model, Path(name) / "model.xml")
        with Session(model, resolve_devices(DEVICES, None), seed=arguments.seed) as session:
            for reward, limit in (("hybrid", None), ("measured", arguments.measured)):
                begin = time.monotonic()
                options = PlaceOptions(
                    reward=reward, seed=arguments.seed, budget_s=arguments.budget, max_evaluations=limit
                )
                found = search_placements(session, options)
                evaluations[reward] = found.recorder.num_evaluations
                events = found.recorder.best(len(found.recorder.events))
                plans = {"best": events[0].plan}
                splits = [event.plan for event in events if event.plan.is_split]
                if splits:
                    plans["best split"] = splits[0]
                for label, plan in plans.items():
                    candidates[f"{reward}, {label}"] = session.placed(found.problem, plan)
                best[reward] = f"{reward}, best"
                simulated = f", {found.num_simulated} simulated" if found.num_simulated else ""
                print(
                    f"{reward}: {evaluations[reward]} measured{simulated}, {time.monotonic() - begin:.0f} s", flush=True
                )
            candidates |= {spec.name: Candidate.on_device(spec) for spec in session.devices.all}
            for key, candidate in candidates.items():
                session.runner.open(key, candidate)
            protocol = Protocol(limit_s=40.0, hopeless=0.0, interval_width=0.0)
            rng = np.random.default_rng(arguments.seed)
            comparison = compare(session.runner.run, list(candidates), ["FAST"], protocol, rng)
    for key in sorted(candidates, key=comparison.median_s):
        ratio = comparison.ratio(key, "FAST")
        against = f"x FAST {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        print(f"  {key:22s} {1e3 * comparison.median_s(key):8.2f} ms  {against}")
    ratio = comparison.ratio(best["hybrid"], best["measured"])
    share = evaluations["hybrid"] / evaluations["measured"]
    print(
        f"hybrid over measured: {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] times as fast (bar: not slower)"
    )
    print(f"measured evaluations: {share:.3f} of the measured search's (bar {SHARE:g})")
    return 0 if not ratio.is_slower and share <= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
