"""Whether it matters that annealing simulates units while plans are judged by the parts of the executor (SIMULATED).

For models of the zoo on two CPU devices, equal ones and one of half the speed, with ops that take as long as their work
says: annealing for --seconds CPU seconds, which simulates units, with --seeds seeds. All plans that it reports are
judged by parts, as ``place`` judges candidates. From the best of these a second search goes on for --judged CPU seconds
that has every proposal judged by parts. Prints what the second search gains (bar: at most 1% on average), and how the
values of units and parts agree in rank over all plans of both searches.

    python benchmarks/search_and_judge.py [--seconds 3] [--judged 10] [--seeds 2] [--only NAME]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np
from machine import options
from scipy.stats import spearmanr

from hsdag.commands.place.kinds import LAUNCH_S, LINK_BYTES_PER_S, LINK_S, work_of
from hsdag.commands.place.loaded_model import PlacedModel
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.models import build_model
from hsdag.runtime.measuring.profile import DeviceProfile, LinkProfile, ModelProfile
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.base import Evaluator, Score
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ModelEvaluator, ScheduleEvaluator

MODELS = ("inception_v3", "resnet50", "bert_base_uncased", "llama-decoder", "tiny_inception", "tiny_bert")
SPEEDS = {"equal": (1.0, 1.0), "unequal": (1.0, 0.5)}
FLOPS_PER_S = 5e10
BAR = 0.99


def profile_of(graph: ComputationGraph, devices: tuple[DeviceSpec, ...], speeds: tuple[float, ...]) -> ModelProfile:
    """A profile in which an op takes as long as its FLOPs or its bytes do, whichever is more."""
    work_s = work_of(graph) / FLOPS_PER_S
    times = tuple(
        DeviceProfile(work_s / speed, (), float(work_s.sum() / speed), 0.0, 1, 0, None, device=spec)
        for spec, speed in zip(devices, speeds, strict=True)
    )
    num = len(devices)
    table = np.full((num, num), LINK_S), np.full((num, num), LINK_BYTES_PER_S)
    return ModelProfile(devices=times, links=LinkProfile(np.full(num, LAUNCH_S), *table))


def annealed(problem: Problem, evaluator: Evaluator, seconds: float, limits: Limits) -> list[Plan]:
    """The plans that annealing had evaluated in these CPU seconds, the best first."""
    recorder = RecordingEvaluator(evaluator, Budget(seconds))
    make_placer("sa", is_cheap=True).search(problem, recorder, limits)
    return [event.plan for event in recorder.best(len(recorder.events) + 1)]


class ByParts(Evaluator):
    """The judge, which has every plan evaluated on its own."""

    def __init__(self, judge: ModelEvaluator) -> None:
        self._judge = judge
        self.takes_order = judge.takes_order

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """The scores of plans."""
        return self._judge.evaluate(plans)


def main() -> int:
    given = options(__doc__, seconds=3.0, judged=10.0, seeds=2, only="")
    time.monotonic = time.process_time
    gains = []
    for name in MODELS:
        graph = read_graph(build_model(name))
        for label, speeds in SPEEDS.items():
            if given.only not in f"{name} {label}":
                continue
            devices = tuple(DeviceSpec(each, "CPU") for each in ("A", "B"))
            placed, profile = PlacedModel(graph, devices), profile_of(graph, devices, speeds)
            problem = placed.priced(placed.problem([np.zeros(0, dtype=np.int64)] * 2), profile, {})
            judge = ModelEvaluator(problem, placed.costs(profile, "work-conserving"), takes_order=True)
            units = ScheduleEvaluator.of(problem)
            for seed in range(given.seeds):
                first = annealed(problem, units, given.seconds, Limits(seed=seed, num_workers=1))
                by_parts = judge.values(first)
                best = first[int(by_parts.argmin())]
                again = annealed(problem, ByParts(judge), given.judged, Limits(seed=seed, num_workers=1, known=(best,)))
                found = float(judge.values(again).min())
                rank = spearmanr(
                    [score.value for score in units.evaluate([*first, *again])], judge.values([*first, *again])
                )
                gains.append(found / by_parts.min())
                over_one = by_parts.min() / judge.values(problem.alone).min()
                print(
                    f"{name}, {label}, seed {seed}: {len(first)} and {len(again)} plans; over one device "
                    f"{over_one:.3f}; judged by parts from there on {gains[-1]:.4f}; ranks {rank.statistic:.3f}",
                    flush=True,
                )
    mean = float(np.exp(np.log(gains).mean()))
    print(f"judged by parts over searched by units: {mean:.4f}, the smallest {min(gains):.4f} (bar: a mean of {BAR})")
    return 0 if mean >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
