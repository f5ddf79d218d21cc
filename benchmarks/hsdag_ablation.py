"""What each departure of the default HSDAG preset from the paper buys, beside controls, on simulated costs.

Controls: random draws; a hill climber that moves one unit at a time, from a random plan and from the best single
device; annealing and the best list schedule with the same number of evaluations; the minimum cut. 'learning off' is the
default with a learning rate of 0.

    python benchmarks/hsdag_ablation.py [--seeds 10] [--evaluations 300] [--only NAME,...]
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from machine import machine

from hsdag.comparing.compare import half_width
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray, graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.methods.incumbent import Limits
from hsdag.methods.learned.hsdag.network import HsdagConfig
from hsdag.methods.learned.hsdag.placer import HsdagPlacer
from hsdag.methods.learned.options import Baseline
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.cost_model import CostModel, CostSource
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Semantics
from hsdag.scoring.base import Evaluator, Score, SearchStopped
from hsdag.scoring.schedule import ScheduleEvaluator

SEQUENTIAL = Semantics(Execution.SEQUENTIAL)
HEAD = "SIMULATED costs, sequential execution; ratios to the best single device."


@dataclass(frozen=True)
class Case:
    """A problem with its simulated costs."""

    name: str
    problem: Problem

    @property
    def evaluator(self) -> ScheduleEvaluator:
        """Simulated latency of sequential execution."""
        assert self.problem.costs is not None
        return ScheduleEvaluator(self.problem.costs, SEQUENTIAL)


class CountingEvaluator(Evaluator):
    """Simulated latencies in order, each distinct placement once; stops after ``budget`` of them."""

    def __init__(self, case: Case, budget: int) -> None:
        self._inner = case.evaluator
        self._known: dict[Plan, Score] = {}
        self._budget = budget
        self._calls = 0
        self.latencies_s: list[float] = []
        self.placements: list[IntArray] = []

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Scores, repeated plans free of charge; a search that only repeats itself is stopped too."""
        results = []
        for plan in plans:
            self._calls += 1
            if plan not in self._known:
                if len(self._known) >= self._budget:
                    raise SearchStopped
                self._known[plan] = self._inner.evaluate([plan])[0]
                self.latencies_s.append(self._known[plan].value)
                self.placements.append(plan.placement)
            if self._calls > 3 * self._budget:
                raise SearchStopped
            results.append(self._known[plan])
        return results


class Builder:
    """A graph under construction: ops with type, channels and side length, and their producers."""

    def __init__(self) -> None:
        self.types: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.flops: list[float] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, kind: str, inputs: Sequence[int], channels: int, side: int, flops: float) -> int:
        """A new op; its index."""
        v = len(self.types)
        self.types.append(kind)
        self.shapes.append((1, channels, side, side))
        self.flops.append(flops)
        self.edges += [(u, v) for u in inputs]
        return v

    def graph(self, name: str) -> ComputationGraph:
        """The finished graph."""
        return graph_from_edges(self.types, self.edges, name=name, shapes=self.shapes, flops=self.flops)


def inception_like() -> ComputationGraph:
    """Eleven modules of four parallel branches, 101 units."""
    b = Builder()
    v = b.add("Convolution", [], 32, 149, 1e8)
    for module in range(11):
        side = (35, 17, 8)[min(module // 4, 2)]
        ends = []
        for depth in (1, 2, 3):
            w = v
            for _ in range(depth):
                w = b.add("Convolution", [w], 96 + 32 * depth, side, 2e7 * (1 + depth))
            ends.append(w)
        pooled = b.add("AvgPool", [v], 256, side, 3e6)
        ends.append(b.add("Convolution", [pooled], 64, side, 2e7))
        v = b.add("Concat", ends, 512, side, 1e6)
    b.add("MatMul", [v], 1000, 1, 4e6)
    return b.graph("inception-like")


def transformer_like() -> ComputationGraph:
    """Eight encoder layers of matrix products and element-wise ops, 97 units."""
    b = Builder()
    v = b.add("Gather", [], 768, 1, 1e6)
    for _ in range(8):
        qkv = [b.add("MatMul", [v], 768, 8, 8e7) for _ in range(3)]
        s = b.add("MatMul", qkv[:2], 12, 8, 4e7)
        s = b.add("Softmax", [s], 12, 8, 6e7)
        s = b.add("MatMul", [s, qkv[2]], 768, 8, 4e7)
        s = b.add("MatMul", [s], 768, 8, 8e7)
        v = b.add("Add", [s, v], 768, 8, 3e7)
        v = b.add("MVN", [v], 768, 8, 8e7)
        s = b.add("MatMul", [v], 3072, 8, 3e8)
        s = b.add("Gelu", [s], 3072, 8, 2e8)
        s = b.add("MatMul", [s], 768, 8, 3e8)
    return b.graph("transformer-like")


def units_of(graph: ComputationGraph) -> CoarseGraph:
    """Every op a unit of its own."""
    return CoarseGraph(graph, Partition.identity(graph.num_ops), graph)


def costs_of(
    graph: ComputationGraph, speed: Callable[[int], Sequence[float]], total_s: float, cut_s: float
) -> CostModel:
    """Op times from FLOPs over per-device speeds, scaled so that the best single device takes ``total_s``."""
    rate = np.asarray([speed(v) for v in range(graph.num_ops)])
    time_s = graph.flops[:, None] / rate
    time_s *= total_s / time_s.sum(axis=0).min()
    d = rate.shape[1]
    return CostModel(
        time_s,
        np.full(d, cut_s),
        np.full((d, d), cut_s),
        np.full((d, d), 10e9),
        CostSource.ANALYTIC,
    )


def case_of(name: str, graph: ComputationGraph, devices: tuple[str, ...], costs: CostModel) -> Case:
    """A problem that every device can run all of."""
    table = ScheduleProblem.from_graph(graph, costs, devices, np.full(len(devices), np.inf))
    supported = np.ones((graph.num_ops, len(devices)), dtype=np.bool_)
    return Case(name, Problem(units_of(graph), devices, supported, costs=table, semantics=SEQUENTIAL))


def cases() -> Iterator[Case]:
    """The fixed problems, on both of which a split wins."""
    graph = transformer_like()
    types = graph.op_types
    by_type = costs_of(graph, lambda v: (1.0, 3.0) if types[v] == "MatMul" else (3.0, 1.0), 0.060, 0.00002)
    yield case_of("transformer-like, MatMul 3x on B, rest 3x on A", graph, ("A", "B"), by_type)
    graph = inception_like()
    shapes = graph.shapes
    by_size = costs_of(graph, lambda v: (3.0, 1.0, 1.0) if shapes[v, 2] > 20 else (1.0, 2.5, 1.0), 0.060, 0.0002)
    yield case_of("inception-like, large maps 3x on A, small 2.5x on B", graph, ("A", "B", "C"), by_size)


def variants() -> dict[str, HsdagConfig]:
    """The presets, and the default less each of its departures from the paper."""
    base = HsdagConfig.default(is_cheap=True)
    return {
        "paper": HsdagConfig.paper(),
        "default": base,
        "learning off": replace(base, learning_rate=1e-100, last_learning_rate=0.0),
        "- costs among the features": replace(base, costs=False),
        "- baseline": replace(base, baseline=Baseline.NONE),
        "- importance weighting": replace(base, clip=None),
        "- sampled parsing": replace(base, sampled_parsing=False),
        "- graph structure": replace(base, structure=False),
    }


def climb(case: Case, evaluator: CountingEvaluator, seed: int, *, from_random: bool) -> None:
    """Move one unit to another device at a time, and keep what is no worse."""
    rng, num, num_devices = np.random.default_rng(seed), case.problem.num_units, case.problem.num_devices
    starts = [rng.integers(0, num_devices, num)] if from_random else [np.full(num, d) for d in range(num_devices)]
    scores = evaluator.evaluate([Plan(each) for each in starts])
    best = int(np.argmin([score.value for score in scores]))
    placement, value = starts[best], scores[best].value
    while True:
        proposal = placement.copy()
        proposal[rng.integers(num)] = rng.integers(num_devices)
        score = evaluator.evaluate([Plan(proposal)])[0]
        if score.value <= value:
            placement, value = proposal, score.value


def draw(case: Case, evaluator: CountingEvaluator, seed: int) -> None:
    """Every unit on a device of its own choice."""
    rng = np.random.default_rng(seed)
    while True:
        evaluator.evaluate([Plan(rng.integers(0, case.problem.num_devices, case.problem.num_units))])


Search = Callable[[Case, CountingEvaluator, int], object]


def with_method(name: str) -> Search:
    """Another method of the registry, whose every plan is asked for."""

    def search(case: Case, evaluator: CountingEvaluator, seed: int) -> object:
        return make_placer(name).search(case.problem, evaluator, Limits(seed=seed))

    return search


def controls() -> dict[str, Search]:
    """What learning has to be better than."""
    return {
        "random draws": draw,
        "hill climber, from random": lambda *args: climb(*args, from_random=True),
        "hill climber, from a device": lambda *args: climb(*args, from_random=False),
        "annealing": with_method("sa"),
        "list schedule (HEFT)": with_method("heft"),
        "minimum cut": with_method("mincut"),
    }


def learned(config: HsdagConfig) -> Search:
    """HSDAG under a config."""
    return lambda case, evaluator, seed: HsdagPlacer(config).search(case.problem, evaluator, Limits(seed=seed))


@dataclass(frozen=True)
class Outcome:
    """One search: the best latency after 50 and after all evaluations, relative to the best single device."""

    best_50: float
    best_all: float


def run(case: Case, search: Search, budget: int, seed: int) -> Outcome:
    """Run one search to the end of its budget."""
    evaluator = CountingEvaluator(case, budget)
    with contextlib.suppress(SearchStopped):
        search(case, evaluator, seed)
    ratio = np.asarray(evaluator.latencies_s) / best_single_s(case)
    return Outcome(float(ratio[:50].min()), float(ratio.min()))


def best_single_s(case: Case) -> float:
    """Seconds of the best single device."""
    shape = (case.problem.num_devices, case.problem.num_units)
    rows = np.broadcast_to(np.arange(shape[0])[:, None], shape)
    return min(score.value for score in case.evaluator.evaluate([Plan(row) for row in rows]))


def table(problems: Sequence[Case], options: argparse.Namespace) -> Iterator[str]:
    """The lines of the table, as they are found."""
    yield HEAD
    yield f"'@50', '@{options.evaluations}': best ratio after so many plans; mean and its 95% interval over seeds."
    for i, case in enumerate(problems, start=1):
        yield f"P{i}: {case.name}, {case.problem.num_units} units"
    head = "".join(f" | P{i} {'@50':>6} {f'@{options.evaluations}':>12}" for i in range(1, len(problems) + 1))
    yield f"{'':<30}{head}"
    begin_s = time.process_time()
    for name, search in {**controls(), **{name: learned(config) for name, config in variants().items()}}.items():
        if not any(part in name for part in options.only.split(",")):
            continue
        cells = ""
        for case in problems:
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            runs = [run(case, search, options.evaluations, seed) for seed in seeds]
            at_end = np.asarray([each.best_all for each in runs])
            half = half_width(float(at_end.std(ddof=1)), len(at_end)) if len(at_end) > 1 else 0.0
            cells += f" |    {np.mean([each.best_50 for each in runs]):6.3f} {at_end.mean():6.3f}±{half:5.3f}"
        yield f"{name:<30}{cells}"
    yield f"{options.seeds} seeds from {options.first_seed} on, {time.process_time() - begin_s:.0f} s of one core"


def main() -> None:
    """Print one table row per control and variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="searches per row and problem")
    parser.add_argument("--first-seed", type=int, default=100, help="0 to 9 served to choose the settings")
    parser.add_argument("--evaluations", type=int, default=300, help="distinct plans a search may ask for")
    parser.add_argument("--only", default="", help="only rows whose name contains one of these, with commas between")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    for line in table(list(cases()), options):
        print(line, flush=True)


if __name__ == "__main__":
    main()
