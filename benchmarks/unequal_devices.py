"""HSDAG on two unequal devices: how near its placements come to the best single device, and what it learns.

FAST has two threads, SLOW one. The search starts from a uniform policy; the placements it sampled itself (not the
single devices it is given as references) are compared with the best single device in common rounds. Prints the
ratio and the share of ops on FAST over the search. Exit status 1 when a bar is missed.

Usage: python benchmarks/unequal_devices.py [--model resnet50] [--budget 120s] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import machine

from hsdag.evaluators.recording import Event
from hsdag.models import save_model_files
from hsdag.search.options import PlaceOptions, parse_duration
from hsdag.search.place import Watcher, run_place

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
REACH = 0.97
"""Best single device's latency over that of HSDAG's best own placement, at least."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", default="default")
    arguments = parser.parse_args()
    print(machine())
    events: list[Event] = []
    with tempfile.TemporaryDirectory() as folder:
        model = save_model_files(arguments.model, Path(folder) / f"{arguments.model}.xml")
        budget_s = parse_duration(arguments.budget)
        options = PlaceOptions(devices=DEVICES, budget_s=budget_s, seed=arguments.seed, preset=arguments.preset)
        outcome = run_place(model, options, watcher=Watcher(on_event=lambda event, _: events.append(event)))
    own = [row for row in outcome.rows if row.name.startswith("placement")]
    single = next(row for row in outcome.rows if row.name == outcome.placement.speedup.versus)
    for row in outcome.rows:
        interval = f"[{row.ratio.low:.3f}, {row.ratio.high:.3f}]"
        print(
            f"{row.name:20s} {1e3 * row.median_s:8.2f} ms  x{row.ratio.value:.3f} {interval}  submodels {row.submodels}"
        )
    sampled = [event for event in events if len(np.unique(event.placement)) > 1]
    share = np.asarray([float((event.placement == 0).mean()) for event in sampled])
    quarters = [float(part.mean()) for part in np.array_split(share, 4)]
    ratio = max(row.ratio.value for row in own)
    print(f"{len(events)} placements evaluated in {outcome.search_s:.0f} s, {len(sampled)} of them split")
    print("share of units on FAST by quarters of the search: " + ", ".join(f"{q:.2f}" for q in quarters))
    print(f"best own placement against {single.name}: {ratio:.3f} (bar {REACH})")
    rises = quarters[-1] > quarters[0]
    print(json.dumps({"ratio": ratio, "bar": REACH, "share_by_quarter": quarters, "share_rises": rises}))
    return 0 if ratio >= REACH and rises else 1


if __name__ == "__main__":
    sys.exit(main())
