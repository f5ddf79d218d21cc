"""Whether what hsdag says is so: what it simulates, what it explains, and what it calls faster.

``simulation``: a model on two CPU devices is profiled; random placements, contiguous and scattered, are simulated from
the profile and measured in common rounds, under HETERO and under the work-conserving executor. Printed for each:
Spearman's and Pearson's correlation, the median relative error, and how well one half of the measurements agrees with
the other half, which no simulation can be expected to exceed by much. Missed when a placement does not run, or when
against the least measured times a correlation is below 0.9 or the median error above 10%. Published beside it:
DOPPLER's simulator against its engine, 0.69 and 0.79.

``explanation``: a model is placed on two CPU devices, and the placement explained; where no split won, the best split
of the search is. Under HETERO the devices have two threads and one, and each has memory for 80% of the weights, so that
the model has to be split; the work-conserving executor has two devices of one thread. Each of the five units that gain
most by the explanation, one at a time, is moved to the device that the explanation names, and all six placements are
measured in common rounds. Missed where in some case fewer than four of five moves slow the placement down beyond their
intervals (95% for all five together), or fewer than two models could be split. Where a busy machine has two devices
slow each other down by half, the search rules splits out, and the case does not count.

``faster``: how often 'faster' is said of placements that are no faster, on a simulated machine on which all take
equally long. Its noise, drawn anew for every comparison, has heavy tails (Student's t of 3 degrees of freedom, a slow
inference now and then), drift (a ramp and a slow wave), autocorrelation over several turns (a process of Ornstein and
Uhlenbeck), and bursts during which everything takes a third longer, all of it scaled by 1/50 (so that rounds end
early), 1/8 and 1. The comparison and what it says are the real ones. Printed is the share of comparisons in which
anything is called faster, by finalists and most rounds. Missed when a cell is above 3%: 2.5%, and what so many
comparisons may miss it by.

Exit status 1 when a part misses its bar.

    python benchmarks/truth.py [simulation explanation faster] [--models resnet50,inception_v3] [--placements 40]
        [--rounds 5] [--cases resnet50/hetero,...] [--budget 60s] [--for 60s] [--comparisons 4000] [--singles 1 3]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import openvino as ov
from machine import machine
from openvino import opset13
from scipy.stats import pearsonr, spearmanr

import hsdag
from hsdag.explaining.explaining import explain_run
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.colocation import widened
from hsdag.ir.placement.placement import Placement
from hsdag.ir.processes import CandidateFailed
from hsdag.models import save_model_files
from hsdag.placing.final import family_ratios
from hsdag.placing.run_folder import RunFolder
from hsdag.placing.session import Session, placed_candidate
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.latency import Protocol, Ratio, compare
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.options import parse_duration

# ---- simulation

CORRELATION, MEDIAN_ERROR = 0.9, 0.1
ONE = "INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32"
EXECUTORS = {"hetero": HeteroCosts, "work-conserving": WorkConservingCosts}


def measured_s(session: Session, problem: Problem, placements: np.ndarray, executor: str, rounds: int) -> np.ndarray:
    """[B, R] seconds of every inference, in rounds in which all placements run in turn; NaN where one fails."""
    taken: dict[int, list[float]] = {}
    for i, placement in enumerate(placements):
        try:
            session.runner.open(str(i), session.placed(problem, Plan(placement), executor))
            session.runner.run(str(i), 2)
            taken[i] = []
        except CandidateFailed as failure:
            print(f"placement {i} does not run: {failure.reason}")
    for _ in range(rounds):
        for i, times_s in taken.items():
            times_s += session.runner.run(str(i), 3)
    return np.array([taken.get(i, [np.nan] * 3 * rounds) for i in range(len(placements))])


def random_placements(problem: Problem, count: int, rng: np.random.Generator) -> np.ndarray:
    """[B, U] legal placements that change device along the topological order, each seldom or often."""
    shape, leave = (count, problem.num_units), np.exp(rng.uniform(np.log(0.02), np.log(0.5), (count, 1)))
    steps = np.where(rng.random(shape) < leave, rng.integers(1, problem.num_devices, shape), 0)
    drawn = (rng.integers(problem.num_devices, size=(count, 1)) + np.cumsum(steps, axis=1)) % problem.num_devices
    is_legal = problem.supported[np.arange(problem.num_units), drawn]
    return np.where(is_legal, drawn, problem.supported.argmax(axis=1))


def agreement(found_s: np.ndarray, expected_s: np.ndarray) -> tuple[float, float, float]:
    """Spearman's and Pearson's correlation, and the median relative error."""
    error = float(np.median(np.abs(found_s / expected_s - 1.0)))
    return float(spearmanr(found_s, expected_s)[0]), float(pearsonr(found_s, expected_s)[0]), error


def words(figures: tuple[float, float, float]) -> str:
    """They, as they are printed."""
    return f"Spearman {figures[0]:.3f}, Pearson {figures[1]:.3f}, median error {figures[2]:.1%}"


def simulated_well(name: str, folder: Path, given: argparse.Namespace) -> bool:
    """Whether both executors' simulations of a model meet the bars."""
    path, met = save_model_files(name, folder / f"{name}.xml"), True
    with Session(path, resolve_devices(f"A=CPU[{ONE}],B=CPU[{ONE}]", None)) as session:
        profile = session.profile(ProfileCache(folder / "cache"), side_by_side=True)
        problem = session.problem(profile=profile)
        placements = random_placements(problem, given.placements, np.random.default_rng(1))
        ops = problem.expand(placements)
        for executor, costs in EXECUTORS.items():
            times_s = measured_s(session, problem, placements, executor, given.rounds)
            ran = np.isfinite(times_s).all(axis=1)
            simulated_s = costs.of(session.graph, profile.costs(session.graph)).latency_s(ops[ran])
            halves = agreement(times_s[ran][:, ::2].min(axis=1), times_s[ran][:, 1::2].min(axis=1))
            found = agreement(simulated_s, times_s[ran].min(axis=1))
            print(f"{name}, {executor}, {ran.sum()} placements, SIMULATED against measured: {words(found)}")
            print(f"  one half of the measurements against the other: {words(halves)}", flush=True)
            met &= bool(ran.all()) and min(found[:2]) >= CORRELATION and found[2] <= MEDIAN_ERROR
    return met


def simulation(given: argparse.Namespace) -> bool:
    """Whether the simulations of all models meet the bars."""
    with tempfile.TemporaryDirectory() as folder:
        met = [simulated_well(name, Path(folder), given) for name in given.models.split(",")]
    return all(met)


# ---- explanation

NUM_MOVES, LEAST_MOVES, LEAST_MODELS = 5, 4, 2
DEVICES = {
    "hetero": "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]",
    "work-conserving": "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]",
}
MEMORY_SHARE = 0.8
"""Of all weights: what each device holds under HETERO."""
CASES = "resnet50/hetero,inception_v3/work-conserving,mixed/work-conserving"
AS_PLACED = "as placed"


def mixed_model() -> ov.Model:
    """Two branches that do not wait for each other: convolutions and wide pools, and tangents of arc tangents."""
    rng = np.random.default_rng(0)
    image = opset13.parameter([1, 16, 112, 112], np.float32, name="image")
    filtered = chain = opset13.relu(image, name="stem")
    for k in range(12):
        weight = opset13.constant((0.1 * rng.standard_normal((16, 16, 3, 3))).astype(np.float32))
        filtered = opset13.convolution(filtered, weight, [1, 1], [1, 1], [1, 1], [1, 1], name=f"convolution{k}")
        filtered = opset13.relu(filtered, name=f"relu{k}")
    for k in range(2):
        filtered = opset13.avg_pool(filtered, [1, 1], [7, 7], [7, 7], [15, 15], False, name=f"pool{k}")
    for k in range(24):
        chain = (opset13.tan if k % 2 else opset13.atan)(chain, name=f"function{k}")
    answer = opset13.reduce_mean(opset13.add(filtered, chain, name="joined"), np.array([2, 3]), name="answer")
    return ov.Model([opset13.result(answer)], [image], "mixed")


def split_of(kept: RunFolder, executor: str) -> Placement | None:
    """The answer of a run, or else the best split that it measured; None where it measured none."""
    answer = kept.placement
    assert answer is not None
    if len(answer.used_devices) > 1:
        return answer
    events = [event for event in kept.events if event.plan.is_split and event.score.failure is None]
    if not events:
        return None
    best = min(events, key=lambda event: event.score.value)
    print(f"  no split won; the best one of {len(events)} is explained, {1e3 * best.score.value:.2f} ms in the search")
    names = [kept.problem.devices[d] for d in kept.problem.expand(best.plan.placement).tolist()]
    affinity = dict(zip(kept.graph.canonical_names, names, strict=True))
    return answer.model_copy(update={"affinity": affinity, "executor": executor, "latency": None})


def compared(path: Path, executor: str, placements: dict[str, Placement], for_s: float) -> dict[str, Ratio]:
    """How many times faster than the placement itself each of the others is, in common rounds."""
    with Session(path, resolve_devices(DEVICES[executor], None), executor=executor) as session:
        for name, placement in placements.items():
            session.runner.open(name, placed_candidate(session, name, placement, executor))
        protocol = Protocol(limit_s=for_s, max_rounds=1000, interval_width=0.0, hopeless=0.0)
        names = list(placements)
        found = compare(session.runner.run, names, names, protocol, np.random.default_rng(0))
    for name, reason in found.failures.items():
        print(f"  {name} does not run: {reason}")
    print(f"  {AS_PLACED}: {1e3 * found.median_s(AS_PLACED):.2f} ms, {len(found.samples[AS_PLACED].rounds)} rounds")
    others = [name for name in found.samples if name != AS_PLACED]
    return {name: found.ratio(name, AS_PLACED, len(others)) for name in others}


def explained_well(name: str, executor: str, folder: Path, given: argparse.Namespace) -> bool | None:
    """Whether enough of the advice on one model holds, None where no split was measured."""
    path, run_folder, memory = folder / f"{name}.xml", folder / f"{name}.{executor}.run", None
    if name == "mixed":
        ov.save_model(mixed_model(), path, compress_to_fp16=False)
    else:
        save_model_files(name, path)
    if executor == "hetero":
        limit = int(
            MEMORY_SHARE * widened(read_graph(path)).weight_bytes.sum()
        )  # in single precision, as CPUs hold them
        memory = ",".join(f"{device}={limit}B" for device in ("FAST", "SLOW", "CPU"))
    placed = hsdag.place(
        path, DEVICES[executor], executor=executor, memory=memory, budget=given.budget, run_folder=run_folder
    )
    print(f"{name} under {executor}, {DEVICES[executor]}: {placed.sentence}")
    kept = RunFolder.load(run_folder)
    placement = split_of(kept, executor)
    if placement is None:
        print("  no split was measured: this case does not count")
        return None
    found = explain_run(kept, placement)
    print(f"  {len(found.gains)} moves simulated in {found.elapsed_s:.2f} s; {found.sentences[0]}")
    advice = {f"{gain.op} to {gain.other}": gain for gain in found.gains[:NUM_MOVES] if gain.gain > 0}
    placements = {AS_PLACED: placement}
    canonical = dict(zip(kept.graph.op_names, kept.graph.canonical_names, strict=True))
    for key, gain in advice.items():
        moved = placement.affinity | {canonical[op]: gain.other for op in gain.ops}
        placements[key] = placement.model_copy(update={"affinity": moved})
    ratios = compared(path, executor, placements, parse_duration(given.seconds, "--for"))
    held = 0
    for key in (key for key in advice if key in ratios):
        simulated, ratio = advice[key].moved / (found.value.simulated or 1.0), ratios[key]
        verdict = "slower" if ratio.is_slower else "FASTER" if ratio.is_faster else "not told apart"
        held += ratio.is_slower
        ends = f"{1 / ratio.high:.3f} to {1 / ratio.low:.3f}"
        print(f"  {key}: SIMULATED {simulated:.3f}, measured {1 / ratio.value:.3f} times as long [{ends}], {verdict}")
    print(f"  {held} of {len(advice)} moves slow the placement down beyond their intervals")
    return held >= LEAST_MOVES


def explanation(given: argparse.Namespace) -> bool:
    """Whether the advice on all models that could be split holds."""
    with tempfile.TemporaryDirectory() as name:
        met = [explained_well(*case.split("/"), Path(name), given) for case in given.cases.split(",")]
    counted = [each for each in met if each is not None]
    print(f"{sum(counted)} of {len(counted)} cases meet the bar of {LEAST_MOVES} of {NUM_MOVES}")
    return all(counted) and len(counted) >= LEAST_MODELS


# ---- faster

FINALISTS, ROUNDS, SCALES = (1, 3, 5, 8), (6, 8, 12, 30, 60), (0.02, 0.125, 1.0)
FALSE_CLAIMS = 0.03
NOMINAL_S = 0.05


class Machine:
    """Inferences of candidates that all take ``NOMINAL_S`` but for the state of the machine, which has a clock."""

    def __init__(self, rng: np.random.Generator, scale: float) -> None:
        self._rng, self._scale = rng, scale
        self.now_s = self._state = self._burst_end_s = 0.0
        self._slope, self._phase = rng.normal(0.0, 2e-3), rng.uniform(0.0, 6.3)

    def run(self, _candidate: str, runs: int) -> list[float]:
        """Seconds of ``runs`` inferences; called by ``compare`` for every candidate alike."""
        rng = self._rng
        self._state += -0.3 * self._state + 0.03 * rng.standard_normal()
        if rng.random() < 0.02:
            self._burst_end_s = self.now_s + rng.exponential(0.5)
        slow = self._state + self._slope * self.now_s + 0.03 * np.sin(self.now_s / 5.0 + self._phase)
        slow += 0.3 * (self.now_s < self._burst_end_s)
        tails = 0.02 * rng.standard_t(3, runs) + rng.exponential(0.2, runs) * (rng.random(runs) < 0.03)
        times_s: list[float] = (NOMINAL_S * np.exp(self._scale * (slow + tails))).tolist()
        self.now_s += sum(times_s)
        return times_s


def is_faster_said(num_finalists: int, num_singles: int, rounds: int, scale: float, rng: np.random.Generator) -> bool:
    """Whether one comparison of equal candidates calls a finalist faster than the best single device."""
    here = Machine(rng, scale)
    finalists = [f"placement {i}" for i in range(num_finalists)]
    singles = [f"device {i}" for i in range(num_singles)]
    protocol = Protocol(min_rounds=min(rounds, 6), max_rounds=rounds, limit_s=1e6)
    comparison = compare(here.run, singles + finalists, singles, protocol, rng, clock=lambda: here.now_s)
    ratios = family_ratios(comparison, finalists, comparison.fastest(singles))
    return any(ratio.is_faster for ratio in ratios.values())


def share(num_finalists: int, num_singles: int, rounds: int, scale: float, comparisons: int) -> float:
    """Share of comparisons with a false claim."""
    rng = np.random.default_rng([num_finalists, num_singles, rounds, int(1000 * scale)])
    return float(np.mean([is_faster_said(num_finalists, num_singles, rounds, scale, rng) for _ in range(comparisons)]))


def faster(given: argparse.Namespace) -> bool:
    """Whether 'faster' is said of equals rarely enough."""
    worst = 0.0
    with ProcessPoolExecutor() as pool:
        for num_singles, scale in itertools.product(given.singles, SCALES):
            print(f"{num_singles} single devices, noise x {scale:g}; finalists in rows, rounds in columns", flush=True)
            print("   " + "".join(f"{rounds:8d}" for rounds in ROUNDS))
            for num in FINALISTS:
                cells = [(num, num_singles, rounds, scale, given.comparisons) for rounds in ROUNDS]
                shares = list(pool.map(share, *zip(*cells, strict=True)))
                worst = max(worst, *shares)
                print(f"{num:3d}" + "".join(f"{100 * s:7.2f}%" for s in shares), flush=True)
    print(f"largest share of false claims {100 * worst:.2f}% (bar {100 * FALSE_CLAIMS:g}%)")
    return worst <= FALSE_CLAIMS


PARTS = {each.__name__: each for each in (simulation, explanation, faster)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="simulation, explanation or faster; default: all")
    parser.add_argument("--models", default="resnet50,inception_v3", help="of simulation")
    parser.add_argument("--placements", type=int, default=40, help="of each model")
    parser.add_argument("--rounds", type=int, default=5, help="in which placements are measured")
    parser.add_argument("--cases", default=CASES, help="of explanation: model/executor")
    parser.add_argument("--budget", default="60s", help="of each placing")
    parser.add_argument("--for", dest="seconds", default="60s", help="for which moves are measured")
    parser.add_argument("--comparisons", type=int, default=4000, help="of each cell of faster")
    parser.add_argument(
        "--singles", type=int, nargs="+", default=[1, 3], help="single devices, the best of which counts"
    )
    given = parser.parse_args()
    print(machine())
    met = [PARTS[name](given) for name in given.parts or PARTS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
