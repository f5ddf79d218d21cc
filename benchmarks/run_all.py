"""Whether every benchmark still runs and prints its figure, with settings that make it short.

The figures themselves mean nothing here, and a bar that is missed is no failure: settings are too small for that. A
benchmark fails that ends with a traceback, takes longer than its time, prints no figure, or is missing from the table
below. Those that need a GPU are left out where there is none.

Usage: make benchmarks, or python benchmarks/run_all.py [--only NAME,...]
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from machine import machine

HERE = Path(__file__).parent
LIMIT_S = 300.0


@dataclass(frozen=True)
class Small:
    """Arguments that make a benchmark short, and the pattern of its figure."""

    arguments: str
    figure: str
    needs_cuda: bool = False


BENCHMARKS = {
    "auto_quality": Small(
        "--seconds 1 --rival-seconds 1 --wired 0 --small 1 --only chainmm --rivals heft,sa", r"it proves \d of 1 optima"
    ),
    "bounds": Small("--seconds 0.5 --wired 1", r"llama-layer, published +229( +[\d.]+){3} +\d+%"),
    "candidate_faults": Small("--candidates 6 --limit 10", r"\d of 6 crashing or hanging candidates survived"),
    "choosing": Small("--problems 1 --budgets 0.2 --methods auto,heft", r"`heft`( \| [\d.-]+){5}"),
    "cluster_losses": Small(
        "--runs 1 --seconds 4 --rounds 1", r"1 of 1 searches outlive[^|]*cluster over processes [\d.]+"
    ),
    "cuda_workloads": Small("--rounds 2 --workloads chainmm", r"chainmm .*\d", needs_cuda=True),
    "encoders": Small("--plans 60 --seeds 1 --methods gdp --graphs chainmm", r"gdp +\| gin +\|"),
    "doppler_quality": Small("--seeds 1 --seconds 1 --auto-seconds 1 --only chainmm", r"within 5% of auto on \d of 1"),
    "engine_overhead": Small("--largest 1000 --models 5 --rounds 5", r"1000 empty tasks, 1 device.*us"),
    "exact_optimality": Small("--problems 5 --ops 6", r"largest relative deviation from brute force \d"),
    "executor_endurance": Small("--inferences 100 --hangs 1", r"growth -?[\d.]+ MB"),
    "executor_parity": Small("--models resnet50 --random 0", r"[\d.e-]+ from the plain CPU"),
    "false_faster": Small("--comparisons 4 --singles 1 --processes 1", r"largest share of false claims [\d.]+%"),
    "explain_truth": Small("--cases tiny_bert/hetero --budget 10s --for 3s", r"\d of \d cases meet the bar of 4 of 5"),
    "family_statistics": Small("--families chain --seeds 2", r"chain +\d+ \d+-\d+( +[\d.-]+)+"),
    "fractal_speed": Small("--ops 1000", r"peak memory [\d.]+ GB"),
    "heft_speed": Small("", r"median +[\d.]+ ms.*simulated makespan"),
    "hetero_prediction": Small("--models tiny_resnet,detour", r"predicted equals actual in \d+ of \d+ cases"),
    "hsdag_ablation": Small("--seeds 1 --only default", r"1 seeds from \d+ on, \d+ s of one core"),
    "hybrid_acquisition": Small("--seeds 2 --rounds 2", r"expected improvement +[\d.]+"),
    "hybrid_cost": Small("--seeds 1 --budget 12s", r"hybrid over measured: [\d.]+ times"),
    "inspect_large": Small("--ops 5000", r"5000 ops: +[\d.]+ s, [\d.]+ GB"),
    "kill_survival": Small("--kills 2 --row 2 --commands solve", r"\d of 2 kills survived"),
    "language_models": Small(
        "--models tiny_stateful_llama_int8 --tokens 8,1+8 --method pipeline --budget 20s", r"\d of 1 models as promised"
    ),
    "local_search_hetero": Small(
        "--problems resnet50 --proposals 10000", r"resnet50 +176 units 2 devices .*whole annealing +[\d,]+/s"
    ),
    "exports_round_trip": Small(
        "--models tiny_resnet,light-squeezenet", r"2 of 2 models read back to the same placement and compute the same"
    ),
    "fuzzing": Small("--inputs 50 --formats problem,platform", r"0 inputs broke a promise"),
    "generation": Small("--models tiny_stateful_llama_int8", r"1 of 1 models generate"),
    "learned_speed": Small("--seconds 0.5 --largest 400", r"doppler +random-wired +402 ops +[\d.]+ a second"),
    "local_search_speed": Small("--seconds 0.2 --sizes 1000", r"1,000 ops, independent links +[\d,]+ a second"),
    "milp_split_quality": Small(
        "--exact-seconds 3 --split-seconds 2 --kinds sdep-2 --modules 5", r"[\d.]+ of it \(bar"
    ),
    "mincut_place": Small(
        "--model resnet50 --budget 5s --rival-budget 5s", r"best of all over mincut's answer: [\d.]+"
    ),
    "mincut_speed": Small("--ops 1000", r"median +[\d.]+ ms, worst"),
    "overlap_inception": Small("--model tiny_inception --rounds 3 --random 1", r"throughput over HETERO's: [\d.]+"),
    "paper_box": Small("", r"two segments, .* +[\d.]+ ms"),
    "place_defaults": Small(
        "--models resnet50 --runs 1 --budget 5s --rivals mincut --rival-budget 5s",
        r"the best of all over the worst answer",
    ),
    "place_inception": Small("--model resnet50 --budget 5s", r"measured once more: [\d.]+ x the best single device"),
    "policy_start": Small(
        "--graphs 2 --other-graphs 1 --seconds 0.5", r"auto with rules is as good as without after \S+ of the time"
    ),
    "real_models": Small("--models light-zfnet512 --placements 1", r"hetero: \d+ of \d+ placements right"),
    "scale": Small(
        "--ops 2000 --devices 4 --seconds 2 --steps features heft sa", r"sa +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+"
    ),
    "simulation_truth": Small("--models resnet50 --placements 5 --rounds 2", r"calibrated.*Spearman"),
    "simulator_agreement": Small("--problems 20", r"largest relative deviation [\d.e-]+"),
    "simulator_simpy": Small("--placements 3", r"ratio of medians \d+"),
    "report_speed": Small("--quick", r"zoom ms: [\d.]+"),
    "simulator_speed": Small("--largest 10000", r"10000 ops, independent: median +[\d.]+ ms"),
    "max_difference": Small(
        "--models tiny_stateful_llama_fp16 --limits 3e-3 --budget 5s", r"1 of 1 answers keep their limit"
    ),
    "memory_limits": Small("--models tiny_bert --shares 0.95 --budget 5s", r"\d of \d answers keep their limits"),
    "mixed_model": Small("--devices A=CPU,B=CPU --budget 4s --runs 1", r"of 2 searches found"),
    "random_placements": Small(
        "--models tiny_resnet --devices A=CPU,B=CPU --placements 2", r"tiny_resnet: \d of 4 right"
    ),
    "submodels_speed": Small("--sizes 1000", r"residual +\d+ +\d+ .* us"),
    "torch_engine_overhead": Small("--devices 2 --rounds 3", r"16 chains +\d+ +[\d.]+"),
    "torch_ops_parity": Small("resnet50", r"largest of all: [\d.e-]+"),
    "training_scale": Small(
        "--problems 8 --updates 4 --workers 1 --simulated 64", r"64 workers, simulated: +[\d.]+ updates a second"
    ),
    "unequal_devices": Small("--budget 10s", r"policy's choice against \S+: [\d.]+"),
    "work_conserving_truth": Small("--placements 4 --calibration 2 --rounds 2", r"calibrated.*Spearman"),
    "zero_shot": Small("--graphs 2 --other-graphs 1 --seconds 0.5", r"A draw takes [\d.]+ ms for 250 ops"),
}


def run(name: str, small: Small) -> str | None:
    """Why a benchmark failed, None where it printed its figure."""
    command = [sys.executable, str(HERE / f"{name}.py"), *small.arguments.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=HERE.parent)
    except subprocess.TimeoutExpired:
        return f"took longer than {LIMIT_S:.0f} s"
    if "Traceback (most recent call last)" in done.stderr:
        return done.stderr.strip().splitlines()[-1]
    found = re.search(small.figure, done.stdout)
    if found is None:
        return f"printed no figure like {small.figure!r}: {(done.stdout + done.stderr)[-300:]!r}"
    line = next(line for line in done.stdout.splitlines() if found[0].splitlines()[0] in line)
    print(f"    {line.strip()[:150]}")
    return None


def processor_s() -> float:
    """Seconds of a core that ended children took."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def has_cuda() -> bool:
    """Whether torch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def commands() -> set[str]:
    """The benchmarks that lie here; other files are read by them."""
    return {path.stem for path in HERE.glob("*.py") if '"__main__"' in path.read_text()} - {Path(__file__).stem}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas")
    chosen = parser.parse_args().only
    names = sorted(chosen.split(",") if chosen else commands() | set(BENCHMARKS))
    print(machine())
    failed = 0
    for name in names:
        begin, spent = time.perf_counter(), processor_s()
        if name not in BENCHMARKS or name not in commands():
            reason: str | None = "is not in the table of run_all.py" if name in commands() else "is no benchmark here"
        elif BENCHMARKS[name].needs_cuda and not has_cuda():
            print(f"{name:22s} left out: no CUDA GPU here")
            continue
        else:
            reason = run(name, BENCHMARKS[name])
        failed += reason is not None
        took_s = time.perf_counter() - begin
        print(f"{name:22s} {took_s:5.1f} s, {processor_s() - spent:5.1f} of a core: {reason or 'ok'}", flush=True)
    print(f"{len(names)} benchmarks, {processor_s():.0f} s of a core, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
