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


def options(reward: str, max_evaluations: int) -> PlaceOptions:
    """Those of ``place_command``, with a short comparison at the end."""
    quick = Protocol(min_rounds=4, max_rounds=6, turn_s=0.02)
    return PlaceOptions(
        partition_cpu=2, reward=reward, budget_s=BUDGET_S, max_evaluations=max_evaluations, protocol=quick
    )


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
def test_a_killed_search_is_resumed_without_losing_an_evaluation(tiny_resnet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    events = tmp_path / "out.run" / "events.jsonl"
    with subprocess.Popen(place_command(tiny_resnet, out), stderr=subprocess.DEVNULL) as process:
        wait_for_events(events, 6)
        process.send_signal(signal.SIGKILL)
    before = events.read_text().splitlines()
    assert not out.exists()
    total = len(before) + 8
    resumed = run_place(tiny_resnet, options("measured", total), run_folder=tmp_path / "out.run", resume=True)
    after = events.read_text().splitlines()
    complete = [line for line in before if line.endswith("}")]
    assert after[: len(complete)] == complete
    assert len(complete) >= len(before) - 1
    assert len(after) == total == resumed.tally.tried
    plans = [json.dumps([json.loads(line).get(name) for name in ("placement", "order")]) for line in after]
    assert len(set(plans)) == len(plans)
    assert resumed.placement.latency is not None


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


@pytest.mark.slow
def test_a_killed_hybrid_search_goes_on_with_what_it_measured_and_simulated(tiny_resnet: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "out.json", tmp_path / "out.run"
    short, few = 30.0, {"updates": "20"}  # what a profile may take grows with the budget
    command = place_command(tiny_resnet, out, "--reward", "hybrid", "--method", "hsdag", "--budget", f"{short}s")
    command += ["--set", "updates=20"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_for_events(run / "candidates.jsonl", 3)
        process.send_signal(signal.SIGKILL)
    before = [line for line in (run / "events.jsonl").read_text().splitlines() if line.endswith("}")]
    kept = [line for line in (run / "candidates.jsonl").read_text().splitlines() if line.endswith("}")]
    most = len(before) + 2
    again = replace(options("hybrid", most), method="hsdag", changes=few, budget_s=short)
    resumed = run_place(tiny_resnet, again, run_folder=tmp_path / "out.run", resume=True)
    assert (run / "events.jsonl").read_text().splitlines()[: len(before)] == before
    assert (run / "candidates.jsonl").read_text().splitlines()[: len(kept)] == kept
    assert len(before) <= resumed.tally.tried <= most
    assert resumed.placement.latency is not None
