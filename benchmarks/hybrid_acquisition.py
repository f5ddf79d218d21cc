"""What to measure next: expected improvement against taking the k best, where the truth is known.

The truth is a model under HETERO whose ops, launches and links take longer or shorter than the profile says, by other
factors for every op, and where some edges cost extra when they are cut; measuring it scatters by 1%. Two worlds: in the
mild one ops are off by 15% and every fifth edge costs extra, in the harsh one, with three devices, by 30% and every
second. A hybrid search alternates local search on the recalibrated costs with two measurements chosen by a rule: the
hybrid evaluator's own (expected improvement), the same without diversity within a batch, the least simulated values, or
a random choice among 512 of the least. Regret: what the best of the three finalists (of the least measured values)
really takes, over the best plan known for that world, minus 1. Prints its mean over the seeds after m measurements,
how many were made, and the mean difference to the k best over all m with its 95% interval. Exit status 1 when the
product's rule has a larger mean regret than the k best in either world, averaged over m.

Usage: python benchmarks/hybrid_acquisition.py [--seeds 24] [--rounds 8]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from machine import machine
from scipy.stats import t as student

from hsdag.evaluators.acquisition import Evidence, Rule, expected_improvement
from hsdag.evaluators.base import Evaluator, Score
from hsdag.evaluators.hybrid import HybridEvaluator, HybridSchedule
from hsdag.evaluators.recording import RecordingEvaluator
from hsdag.ir import graph_from_edges
from hsdag.ir.coarsen import coarsen
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.ir.partition import Partition
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.platforms.usable_cpus import usable_cpus
from hsdag.runtime.problems.cost_model import CostModel, CostSource
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem

NUM_OPS, NUM_KINDS, FASTEST_S = 60, 6, 20e-3
EACH, FINALISTS = 2, 3
SCATTER = 0.01


@dataclass(frozen=True)
class World:
    """How wrong a profile is: by shares, and by seconds that a cut edge costs extra."""

    num_devices: int
    op_error: float
    share_of_edges: float
    extra_s: float = 2.5e-4


WORLDS = {"mild": World(2, 0.15, 0.2), "harsh": World(3, 0.3, 0.5)}


class Truth(Evaluator):
    """The devices: plans take other times than ``prior`` says."""

    def __init__(self, world: World, seed: int) -> None:
        rng, d = np.random.default_rng(seed), world.num_devices
        edges = sorted({(max(0, v - step), v) for v in range(1, NUM_OPS) for step in (1, *rng.integers(1, 4, 1))})
        self.graph = graph_from_edges(["Add"] * NUM_OPS, edges, output_bytes=rng.integers(1e4, 1e6, NUM_OPS).tolist())
        kind = np.repeat(rng.integers(0, NUM_KINDS, NUM_OPS // 5), 5)
        time_s = rng.lognormal(0, 1, NUM_OPS)[:, None] * rng.lognormal(0, 0.6, (NUM_KINDS, d))[kind]
        time_s *= FASTEST_S / time_s.sum(axis=0).min()
        self.prior = self._costs(time_s, np.full(d, 1e-4), np.full((d, d), 2e-5), np.full((d, d), 5e9))
        wrong_s = time_s * rng.lognormal(0, world.op_error, time_s.shape)
        wrong_s *= time_s.sum(axis=0) / wrong_s.sum(axis=0)  # whole devices were measured
        launch_s, latency_s = 1e-4 * rng.uniform(1, 8, d), 2e-5 * rng.uniform(0.5, 8, (d, d))
        self._true = self._costs(wrong_s, launch_s, latency_s, 5e9 / rng.uniform(0.5, 5, (d, d)))
        dear = rng.random(self.graph.num_edges) < world.share_of_edges
        self._extra_s = np.where(dear, rng.exponential(world.extra_s, self.graph.num_edges), 0.0)
        self.problem = Problem(
            coarsen(self.graph, Partition.identity(NUM_OPS)), tuple("abc"[:d]), np.ones((NUM_OPS, d), dtype=np.bool_)
        )
        self._rng = rng

    def _costs(self, *tables: FloatArray) -> HeteroCosts:
        return HeteroCosts.of(self.graph, CostModel(*tables, CostSource.MEASURED))

    def seconds(self, placements: IntArray) -> FloatArray:
        """[B] what placements [B, N] really take."""
        cut = placements[:, self.graph.edge_src] != placements[:, self.graph.edge_dst]
        return self._true.latency_s(placements) + cut @ self._extra_s

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        values = self.seconds(np.stack([plan.placement for plan in plans]))
        return [Score(float(v)) for v in values * self._rng.lognormal(0, SCATTER, len(values))]


class Exact(Truth):
    """The same, measured without scatter."""

    is_cheap = True

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        return [Score(float(v)) for v in self.seconds(np.stack([plan.placement for plan in plans]))]


def k_best(_placements: IntArray, simulated: FloatArray, _evidence: Evidence, count: int) -> list[int]:
    """The least simulated values."""
    return [int(i) for i in np.argsort(simulated, kind="stable")[:count]]


def at_random(
    rng: np.random.Generator, _placements: IntArray, simulated: FloatArray, _evidence: Evidence, count: int
) -> list[int]:
    """Any."""
    return [int(i) for i in rng.choice(len(simulated), min(count, len(simulated)), replace=False)]


def without_diversity(placements: IntArray, simulated: FloatArray, evidence: Evidence, count: int) -> list[int]:
    """The largest expected improvements, as if nothing were learned from the others of the batch."""
    left = np.arange(len(simulated))
    chosen: list[int] = []
    for _ in range(count):
        for i in expected_improvement(placements[left], simulated[left], evidence, 1):
            chosen.append(int(left[i]))
            left = np.delete(left, i)
    return chosen


def local_search(evaluator: Evaluator, starts: Sequence[Plan], d: int, rng: np.random.Generator, steps: int) -> None:
    """Anneal from the best of ``starts``: batches of 32 stretches and single ops that change their device."""
    values = [score.value for score in evaluator.evaluate(starts)]
    current, value = starts[int(np.argmin(values))].placement, min(values)
    for step in range(steps):
        proposals = np.repeat(current[None], 32, axis=0)
        for proposal in proposals:
            length = 1 if rng.random() < 0.3 else int(np.exp(rng.uniform(np.log(2), np.log(NUM_OPS / 2))))
            first = int(rng.integers(1 - length, NUM_OPS))
            proposal[max(first, 0) : first + length] = rng.integers(d)
        scores = [score.value for score in evaluator.evaluate([Plan(each) for each in proposals])]
        best = int(np.argmin(scores))
        temperature = 0.02 * value * 0.01 ** (step / steps)
        if scores[best] < value or rng.random() < np.exp((value - scores[best]) / temperature):
            current, value = proposals[best], scores[best]


def searched(world: World, seed: int, rule: Rule, rounds: int) -> list[Plan]:
    """Everything that a hybrid search measured, in order."""
    truth, rng, d = Truth(world, seed), np.random.default_rng(seed), world.num_devices
    recorder = RecordingEvaluator(truth)
    recorder.evaluate([Plan(np.full(NUM_OPS, device)) for device in range(d)])
    schedule = HybridSchedule(first=np.inf, share=np.inf, measured_each=EACH, patience=0)
    hybrid = HybridEvaluator(truth.problem, truth.prior, recorder, schedule, rule=rule)
    for _ in range(rounds):
        local_search(hybrid, hybrid.best(4), d, rng, 50)
        hybrid.measure_promising()
    return recorder.events


def regrets(name: str, rounds: int, seed: int) -> dict[str, tuple[FloatArray, int]]:
    """[m] of every rule in one world drawn from ``seed``, and how many splits the rule had measured."""
    world, exact = WORLDS[name], Exact(WORLDS[name], seed)
    rules: dict[str, Rule] = {
        "expected improvement": expected_improvement,
        "  without diversity": without_diversity,
        "k best": k_best,
        "random": partial(at_random, np.random.default_rng(seed)),
    }
    found_s: dict[str, tuple[FloatArray, int]] = {}
    plans: list[Plan] = []
    for label, rule in rules.items():
        events = searched(world, seed, rule, rounds)
        measured_s = np.array([event.score.value for event in events])
        true_s = exact.seconds(np.stack([event.plan.placement for event in events]))
        plans += [event.plan for event in events]
        counts = np.minimum(world.num_devices + np.arange(EACH * rounds + 1), len(events))
        best_so_far_s = np.array([true_s[np.argsort(measured_s[:m])[:FINALISTS]].min() for m in counts])
        found_s[label] = best_so_far_s, len(events) - world.num_devices
    everything = RecordingEvaluator(exact)
    for again in range(2):
        local_search(everything, plans, world.num_devices, np.random.default_rng(again), 400)
    best_s = everything.best()[0].score.value
    return {label: (each_s / best_s - 1, count) for label, (each_s, count) in found_s.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    print(machine())
    met = True
    for name in WORLDS:
        with ProcessPoolExecutor(usable_cpus()) as pool:
            found = list(pool.map(partial(regrets, name, arguments.rounds), range(arguments.seeds)))
        shown = [m for m in (0, 1, 2, 4, 6, 8, 12, 16, 24) if m <= EACH * arguments.rounds]
        print(f"{name}: regret in %, mean of {arguments.seeds} seeds, after m measurements; over all m against k best")
        print(f"  {'m':22s}" + "".join(f"{m:7d}" for m in shown) + "   measured")
        table = {label: 100 * np.stack([each[label][0] for each in found]) for label in found[0]}
        for label, each in table.items():
            gain = (each - table["k best"]).mean(axis=1)
            half = student.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else np.inf
            figures = "".join(f"{each[:, m].mean():7.2f}" for m in shown)
            count, over = np.mean([one[label][1] for one in found]), gain.mean()
            print(f"  {label:22s}{figures} {count:8.1f}   {over:+.2f} [{over - half:+.2f}, {over + half:+.2f}]")
        met = met and bool(table["expected improvement"].mean() <= table["k best"].mean())
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
