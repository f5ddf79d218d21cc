"""``hsdag place --method mincut`` on two unequal CPU devices as a user runs it: wall time, and how good its answer is.

FAST has two threads, SLOW one; nothing is in the cost cache. Its answer is measured in common rounds beside what
``--method hsdag`` finds in a longer search, and the single devices. Exit status 1 when the command takes more than
30 s, or its answer is more than 5% slower than the best of all these.

Usage: python benchmarks/mincut_place.py [--model inception_v3] [--rival-budget 600s]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from machine import machine
from place_defaults import DEVICES, place

import hsdag
from hsdag.models import save_model_files
from hsdag.runtime.platforms.devices import resolve_devices

BAR_S, NO_SLOWER = 30.0, 0.95


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
        cut = place(model, "mincut", arguments.budget, folder / "mincut.json")
        rival = place(model, "hsdag", arguments.rival_budget, folder / "hsdag.json")
        devices = resolve_devices(DEVICES, None).all
        result = hsdag.bench(model, {"mincut": cut.placement, "hsdag": rival.placement}, devices, time="24s")
    latencies = {row.name: row.latency.median_s for row in result.rows}
    for label, median_s in sorted(latencies.items(), key=lambda item: item[1]):
        print(f"{label:8s} {1e3 * median_s:8.2f} ms")
    reached = min(latencies.values()) / latencies["mincut"]
    print(f"whole command {cut.total_s:.1f} s (bar {BAR_S:.0f} s)")
    print(f"best of all over mincut's answer: {reached:.3f} (bar {NO_SLOWER})")
    return 0 if cut.total_s <= BAR_S and reached >= NO_SLOWER else 1


if __name__ == "__main__":
    sys.exit(main())
