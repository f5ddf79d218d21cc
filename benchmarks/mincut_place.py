"""``hsdag place --method mincut`` on two unequal CPU devices as a user runs it: wall time, and how good its answer is.

FAST has two threads, SLOW one; nothing is in the cost cache. Its answer is measured in common rounds beside what
``--method hsdag`` finds in a longer search, and the single devices. Exit status 1 when the command takes more than
30 s, or its answer is more than 5% slower than the best of all these.

Usage: python benchmarks/mincut_place.py [--model inception_v3] [--rival-budget 600s]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine

import hsdag
from hsdag import Placement
from hsdag.models import save_model_files
from hsdag.runtime.platforms.devices import resolve_devices

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
BAR_S, NO_SLOWER = 30.0, 0.95


def place(model: Path, method: str, budget: str, folder: Path) -> tuple[Placement, float]:
    """The answer of a method, and seconds of the whole command with an empty cache."""
    out, cache = folder / f"{method}.json", folder / f"{method}.cache"
    cache.mkdir()
    command = [sys.executable, "-m", "hsdag", "place", str(model), "--method", method, "--devices", DEVICES]
    environment = os.environ | {"HSDAG_CACHE_DIR": str(cache)}
    begin = time.perf_counter()
    answer = subprocess.run(
        [*command, "--budget", budget, "-o", str(out), "--json"], check=True, stdout=subprocess.PIPE, env=environment
    )
    elapsed_s = time.perf_counter() - begin
    document = json.loads(answer.stdout)
    print(f"{method}, --budget {budget}: {elapsed_s:.1f} s in all. {document['sentence']}")
    return Placement.load(out), elapsed_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="inception_v3")
    parser.add_argument("--budget", default="10s")
    parser.add_argument("--rival-budget", default="600s")
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_model_files(arguments.model, folder / f"{arguments.model}.xml")
        cut, elapsed_s = place(model, "mincut", arguments.budget, folder)
        rival, _ = place(model, "hsdag", arguments.rival_budget, folder)
        devices = resolve_devices(DEVICES, None).all
        result = hsdag.bench(model, {"mincut": cut, "hsdag": rival}, devices, time="24s")
    latencies = {row.name: row.latency.median_s for row in result.rows}
    for label, median_s in sorted(latencies.items(), key=lambda item: item[1]):
        print(f"{label:8s} {1e3 * median_s:8.2f} ms")
    reached = min(latencies.values()) / latencies["mincut"]
    print(f"whole command {elapsed_s:.1f} s (bar {BAR_S:.0f} s)")
    print(f"best of all over mincut's answer: {reached:.3f} (bar {NO_SLOWER})")
    return 0 if elapsed_s <= BAR_S and reached >= NO_SLOWER else 1


if __name__ == "__main__":
    sys.exit(main())
