"""Searches survive: a plugin that crashes or hangs, SIGKILL, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hsdag.ir.placement.placement import Placement
from hsdag.placing.place import run_place
from hsdag.runtime.measuring.latency import Protocol
from hsdag.search.options import PlaceOptions

BUDGET_S = 400


def place_command(model: Path, out: Path, *more: str) -> list[str]:
    command = [sys.executable, "-m", "hsdag", "place", str(model), "--partition-cpu", "2", "-o", str(out)]
    return [*command, "--budget", f"{BUDGET_S}s", "--reward", "measured", *more]


def wait_for_events(path: Path, count: int) -> list[str]:
    for _ in range(3000):
        if path.exists() and len(lines := path.read_text().splitlines()) >= count:
            return lines
        time.sleep(0.1)
    pytest.fail(f"no {count} events within 300 s")


@pytest.mark.slow
def test_ctrl_c_ends_with_the_best_so_far_measured_and_saved(tiny_resnet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = place_command(tiny_resnet, out, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_events(tmp_path / "out.run" / "events.jsonl", 5)
        process.send_signal(signal.SIGINT)
        answer, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    document = json.loads(answer)
    assert document["interrupted"]
    assert document["tally"]["tried"] >= 5
    placement = Placement.load(out)
    assert placement.latency is not None
    assert placement.latency.measured
    assert np.isfinite(placement.latency.median_s)


HYBRID = ["--reward", "hybrid", "--method", "hsdag", "--budget", "30s", "--set", "updates=20"]
"""A short budget, since what a profile may take grows with it."""


@pytest.mark.slow
@pytest.mark.parametrize(("file", "words"), [("events.jsonl", []), ("candidates.jsonl", HYBRID)])
def test_a_killed_search_is_resumed_without_losing_what_it_measured_and_simulated(
    tiny_resnet: Path, tmp_path: Path, file: str, words: list[str]
) -> None:
    out, run = tmp_path / "out.json", tmp_path / "out.run"
    with subprocess.Popen(place_command(tiny_resnet, out, *words), stderr=subprocess.DEVNULL) as process:
        wait_for_events(run / file, 4)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    paths = [path for path in (run / "events.jsonl", run / "candidates.jsonl") if path.exists()]
    before = [[line for line in path.read_text().splitlines() if line.endswith("}")] for path in paths]
    most, quick = len(before[0]) + 3, Protocol(min_rounds=4, max_rounds=6, turn_s=0.02)
    given = PlaceOptions(partition_cpu=2, reward="measured", budget_s=BUDGET_S, max_evaluations=most, protocol=quick)
    if words:
        given = replace(given, reward="hybrid", method="hsdag", changes={"updates": "20"}, budget_s=30.0)
    resumed = run_place(tiny_resnet, given, run_folder=run, resume=True)
    after = [path.read_text().splitlines() for path in paths]
    assert [lines[: len(old)] for lines, old in zip(after, before, strict=True)] == before
    assert len(after[0]) == resumed.tally.tried <= most
    assert words or resumed.tally.tried == most
    plans = [json.dumps([json.loads(line).get(name) for name in ("placement", "order")]) for line in after[0]]
    assert len(set(plans)) == len(plans)
    assert resumed.placement.latency is not None
