"""``hsdag place`` with its defaults on two unequal CPU devices, many times, against single methods with much more time.

FAST has two threads, SLOW one; every run begins with an empty profile cache. For each model: how soon the first
placement was measured (bar: 10 s), the answer over the best single device by the run's own comparison (bar: at least 1
in every run); then all answers beside the single devices and the answers of --rivals, each of which searched for
--rival-budget: the best of all over the worst answer of the runs (bar: 0.98). Exit status 1 where a bar is missed.

Usage: python benchmarks/place_defaults.py [--models resnet50,inception_v3,bert_base_uncased] [--runs 10]
       [--budget 30s] [--rivals sa,mincut,cpsat] [--rival-budget 600s]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

from machine import options

import hsdag
from hsdag import Placement
from hsdag.models import save_model_files
from hsdag.runtime.machine.devices import resolve_devices

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
FIRST_BAR_S, NO_SLOWER = 10.0, 0.98


class Answer(NamedTuple):
    """A placement, seconds until the first one was measured, and its speed over the best single device."""

    placement: Placement
    first_s: float
    ratio: float


def place(model: Path, method: str, budget: str, out: Path) -> Answer:
    """The answer of a method, as a user runs it, with an empty profile cache."""
    cache = out.with_suffix(".cache")
    cache.mkdir()
    command = [sys.executable, "-m", "hsdag", "place", str(model), "--method", method, "--devices", DEVICES, "--json"]
    begin_s, first_s, events = time.perf_counter(), float("inf"), out.with_suffix(".run") / "events.jsonl"
    environment = os.environ | {"HSDAG_CACHE_DIR": str(cache)}
    with out.with_suffix(".answer").open("w+") as answer:
        process = subprocess.Popen(
            [*command, "--budget", budget, "-o", str(out)], stdout=answer, stderr=subprocess.DEVNULL, env=environment
        )
        while process.poll() is None:
            time.sleep(0.05)
            if first_s == float("inf") and events.exists() and re.search(r'"value":.*}\n', events.read_text()):
                first_s = time.perf_counter() - begin_s
        answer.seek(0)
        document = json.load(answer)
    assert process.returncode == 0
    (ratio,) = [row["ratio"] for row in document["rows"] if row["is_answer"]]
    print(f"  {method}, {budget}: first {first_s:.1f} s, x{ratio:.3f}; {document['sentence']}", flush=True)
    return Answer(Placement.load(out), first_s, ratio)


def judge(name: str, folder: Path, arguments: Namespace) -> bool:
    """Whether a model keeps the bars."""
    model = save_model_files(name, folder / f"{name}.xml")
    print(name)
    runs = [place(model, "auto", arguments.budget, folder / f"{name}-{i}.json") for i in range(arguments.runs)]
    placements = {f"run {i}": run.placement for i, run in enumerate(runs)}
    for method in filter(None, arguments.rivals.split(",")):
        placements[method] = place(model, method, arguments.rival_budget, folder / f"{name}-{method}.json").placement
    splits = {label: each for label, each in placements.items() if len(set(each.affinity.values())) > 1}
    devices = resolve_devices(DEVICES, None).all
    result = hsdag.bench(model, splits, devices, time=f"{4 * (len(splits) + len(devices))}s")
    latency_s = {row.name: row.median_s for row in result.rows}
    for label, placement in placements.items():
        latency_s.setdefault(label, latency_s.get(next(iter(placement.affinity.values())), float("inf")))
    worst_s = max(latency_s[f"run {i}"] for i in range(arguments.runs))
    reached, first_s = min(latency_s.values()) / worst_s, max(run.first_s for run in runs)
    num_right = sum(run.ratio >= 1.0 for run in runs)
    print(f"{name}: {num_right} of {len(runs)} answers no slower than the best single device; first placement after at")
    print(f"  most {first_s:.1f} s; the best of all over the worst answer {reached:.3f}", flush=True)
    return num_right == len(runs) and first_s <= FIRST_BAR_S and reached >= NO_SLOWER


def main() -> int:
    models, rivals = "resnet50,inception_v3,bert_base_uncased", "sa,mincut,cpsat"
    arguments = options(__doc__, models=models, runs=10, budget="30s", rivals=rivals, rival_budget="600s")
    with tempfile.TemporaryDirectory() as folder:
        kept = [judge(name, Path(folder), arguments) for name in arguments.models.split(",")]
    print(f"{sum(kept)} of {len(kept)} models keep the bars")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
