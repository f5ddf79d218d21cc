"""HSDAG where costs are not known, beside random draws, a hill climber, annealing, and itself at a learning rate of 0.

- hidden (SIMULATED): new graphs of six families, whose costs the method is not told. A plan takes
  OPEN_S seconds to open, and PART_S for each of its parts, as on a CPU; values have a noise of NOISE. Printed is the
  best plan after --hidden-s such seconds, over the best single device, and over HSDAG's, with --seeds seeds.
- devices: models on two sets of unequal CPU devices, ``place --reward measured`` with --budget-s seconds each. In the
  final comparison of a run, the best placement or device over the fastest of the devices placed on; and each rival's
  over HSDAG's (bar: faster than all rivals in 5 of 6 cells, intervals over --seeds seeds), also over all cells.

    python benchmarks/measured_rewards.py [hidden devices] [--seeds 5] [--hidden-s 40] [--budget-s 60] [--only NAME]
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from learned_quality import FAMILIES, FIRST
from machine import ONE, options
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import hsdag
from hsdag.commands.sources import find_family
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.models import build_model
from hsdag.runtime.measuring.latency import half_width
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import Evaluator, Score, SearchStopped
from hsdag.search.evaluators.schedule import ScheduleEvaluator

OPEN_S, PART_S, NOISE = 0.3, 0.008, 0.01
OFF = {"learning_rate": "0", "last_learning_rate": "0"}
COLD = {"hottest": "1e-12", "coldest": "1e-12"}
METHODS: dict[str, tuple[str, dict[str, str]]] = {
    "hsdag": ("hsdag", {}),
    "random draws": ("random", {}),
    "hill climber": ("sa", COLD),
    "annealing": ("sa", {}),
    "hsdag, learning rate 0": ("hsdag", OFF),
}
MODELS = (
    ("resnet50", "bert_base_uncased"),
    ("resnet50", "inception_v3"),
    ("resnet50", "inception_v3", "bert_base_uncased"),
)
HALF = "INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=bf16"
SETS = {
    "two devices": f"A=CPU[{ONE}],B=CPU[{HALF}]",
    "three devices": f"A=CPU[{ONE}],B=CPU[{HALF}],C=CPU[{ONE}]",
}


class Hidden(Evaluator):
    """Simulated values with noise, as if measured; opening a plan takes seconds of a budget."""

    def __init__(self, problem: Problem, seconds: float, seed: int) -> None:
        self._inner, self._problem = ScheduleEvaluator.of(problem), problem
        self.takes_order, self._left_s, self._seconds = self._inner.takes_order, seconds, seconds
        self._rng = np.random.default_rng(seed)
        self._seen: dict[Plan, Score] = {}
        self.best = np.inf  # without noise

    @property
    def progress(self) -> float:
        """The spent share of the seconds."""
        return 1.0 - max(self._left_s, 0.0) / self._seconds

    def check(self) -> None:
        """Raise SearchStopped after the last second."""
        if self._left_s <= 0:
            raise SearchStopped

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """The scores of plans; each is opened once."""
        return [self._seen.get(plan) or self._opened(plan) for plan in plans]

    def _opened(self, plan: Plan) -> Score:
        self.check()
        costs, num = self._problem.known_costs, self._problem.num_units
        same = plan.placement[costs.edge_src] == plan.placement[costs.edge_dst]
        edges = coo_array((np.ones(same.sum()), (costs.edge_src[same], costs.edge_dst[same])), (num, num))
        self._left_s -= OPEN_S + PART_S * int(connected_components(edges, directed=False)[0])
        (score,) = self._inner.evaluate([plan])
        if score.failure is None:
            self.best = min(self.best, score.value)
            score = Score(score.value * float(np.exp(NOISE * self._rng.standard_normal())))
        self._seen[plan] = score
        return score


def hidden_value(problem: Problem, method: str, changes: dict[str, str], seconds: float, seed: int) -> float:
    """The best that a method finds, without noise, over the best single device."""
    evaluator = Hidden(problem, seconds, seed)
    alone = min(score.value for score in ScheduleEvaluator.of(problem).evaluate(problem.alone))
    placer = make_placer(method, changes=changes, is_cheap=False)
    placer.search(replace(problem, costs=None, ops=None), evaluator, Limits(seed=seed))
    return evaluator.best / alone


def hidden(given: Namespace) -> bool:
    """Print what methods find without knowing costs; whether learning and HSDAG gain."""
    found: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for family in FAMILIES:
        for k in range(given.each):
            costs = find_family(family).problem(FIRST + k)
            problem = problem_of(replace(costs, memory_bytes=np.full(costs.num_devices, np.inf)))
            for name, (method, changes) in METHODS.items():
                values = [hidden_value(problem, method, changes, given.hidden_s, seed) for seed in range(given.seeds)]
                found[name].append(values)
            cells = ", ".join(f"{name} {np.mean(found[name][-1]):.3f}" for name in METHODS)
            print(f"{family} {k}, {problem.num_units} units, {problem.num_devices} devices: {cells}", flush=True)
    logs = {name: np.log(each).mean(axis=1) for name, each in found.items()}
    print(f"hsdag over the best single device, SIMULATED: {np.exp(logs['hsdag'].mean()):.3f}")
    over = {name: each - logs["hsdag"] for name, each in logs.items() if name != "hsdag"}
    kept = {name: told(name, each) for name, each in over.items()}
    return all(kept.values())


def told(name: str, logs: np.ndarray) -> bool:
    """Print a rival over HSDAG, of logarithms [R]; whether the interval is above 1."""
    half = half_width(float(logs.std(ddof=1)), len(logs)) if len(logs) > 1 else np.inf
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    print(f"  {name:25s} {middle:.3f} [{low:.3f}, {high:.3f}] times hsdag's", flush=True)
    return bool(low > 1.0)


def model_of(names: Sequence[str]) -> ov.Model:
    """Models of the zoo side by side, as towers of one model that has all their inputs and outputs."""
    parts = [build_model(name) for name in names]
    if len(parts) == 1:
        return parts[0]
    results = [each for part in parts for each in part.get_results()]
    return ov.Model(results, [each for part in parts for each in part.get_parameters()], " and ".join(names))


def gain(path: Path, devices: str, method: str, changes: dict[str, str], given: Namespace, seed: int) -> float:
    """The least time of placements and devices over that of the fastest device, in a run's own comparison."""
    how = {"method": method, "settings": changes, "reward": "measured", "budget": given.budget_s, "seed": seed}
    rows = hsdag.place(path, devices, **how).rows
    names = [each.partition("=")[0] for each in devices.split("],")]
    alone = min(row.median for row in rows if row.name in names)
    return min([alone, *(row.median for row in rows if row.name.startswith("placement"))]) / alone


def on_devices(given: Namespace) -> bool:
    """Print what methods find by measuring; whether HSDAG beats all others in five of six cells."""
    kept, over = [], dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as folder:
        for models in MODELS:
            path = Path(folder) / "model.xml"
            ov.save_model(model_of(models), path, compress_to_fp16=False)
            for label, devices in SETS.items():
                cell = f"{' and '.join(models)}, {label}"
                if given.only not in cell:
                    continue
                found = {
                    name: np.log([gain(path, devices, *how, given, seed) for seed in range(given.seeds)])
                    for name, how in METHODS.items()
                }
                print(f"{cell}: hsdag over the best device {np.exp(found['hsdag'].mean()):.3f}", flush=True)
                rivals = ("random draws", "hill climber", "annealing")
                beaten = {name: told(name, each - found["hsdag"]) for name, each in found.items() if name != "hsdag"}
                for name in beaten:
                    over.setdefault(name, []).append(float((found[name] - found["hsdag"]).mean()))
                kept.append(all(beaten[name] for name in rivals))
    for name, cells in over.items():
        told(f"{name}, cells", np.array(cells))
    print(f"hsdag is faster than its rivals in {sum(kept)} of {len(kept)} cells")
    return sum(kept) >= 5 / 6 * len(kept)


def main() -> int:
    given = options(
        __doc__,
        ("hidden", "devices"),
        each=(2, "graphs of each family"),
        seeds=5,
        hidden_s=40.0,
        budget_s=60.0,
        only=("", "cells of devices whose name has this"),
    )
    torch.set_num_threads(1)
    kept = [part(given) for name, part in (("hidden", hidden), ("devices", on_devices)) if name in given.parts]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
