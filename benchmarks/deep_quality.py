"""What ``--method auto`` makes of deep graphs, over what one of their blocks takes; all simulated.

Chains of Llama's block on four P100 and on eight (``p100x8``: each twice), without limits of memory. For every chain:
``auto`` over blocks times the best of one block (bar 1.015; 1.04 with every fourth block of another width, which counts
as its own best), its gap to the lower bound, and how much more that is than one block's gap (bar 1%). Then decoders of
BERT's and Llama's kind, ``--layers`` deep, under sequential and work-conserving execution: ``auto`` in --short seconds
over the same in --long (bar 1.01). Last, proposals a second of ``windows`` at 10,000 ops and at 250 (bar: a factor of
5). ``--slow`` multiplies all seconds, on a machine that has other work. Exit status 1 where a bar is missed.

    python benchmarks/deep_quality.py [--blocks 4,16,64,256] [--platforms p100x4,p100x8] [--seconds 30] [--slow 1]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from auto_quality import solved
from machine import machine
from speed import layered

from hsdag.ir.graph.build import graph_of
from hsdag.methods.incumbent import Limits
from hsdag.methods.registry import make_placer
from hsdag.models.networks import DecoderSizes, llama_decoder
from hsdag.models.sharded_workloads import LlamaSizes, llama_block
from hsdag.runtime.platforms.analytic import analytic_costs
from hsdag.runtime.platforms.reader import load_platform
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve
from hsdag.sources import cluster, workload_problem

WIDE = LlamaSizes(hidden=16_384)
PLATFORMS = {"p100x4": (4, lambda: load_platform("p100x4")), "p100x8": (8, lambda: cluster(load_platform("p100x4"), 1))}
BAR, BAR_OF_WIDTHS, MORE_GAP, BAR_OF_TIME, SLOWER = 1.015, 1.04, 0.01, 1.01, 5.0


def chain(platform: str, sizes: list[LlamaSizes]) -> ScheduleProblem:
    """Blocks in a row, without limits of memory."""
    num_devices, load = PLATFORMS[platform]
    problem = workload_problem(llama_block(num_devices, *sizes), load())
    return replace(problem, memory_bytes=np.full(num_devices, np.inf))


def chains(given: argparse.Namespace) -> Iterator[bool]:
    """Whether each chain keeps its bars."""
    for platform in given.platforms.split(","):
        seconds = given.seconds * given.slow
        alone = {each: solved(chain(platform, [each]), "auto", seconds) for each in (LlamaSizes(), WIDE)}
        gap = alone[LlamaSizes()][0].gap or 0.0
        for num in map(int, given.blocks.split(",")):
            for widths in (1, 4):
                sizes = [WIDE if widths > 1 and n % widths == widths - 1 else LlamaSizes() for n in range(num)]
                own, own_s = solved(chain(platform, sizes), "auto", seconds)
                over, more = own_s / sum(alone[each][1] for each in sizes), (own.gap or 0.0) - gap
                bar = BAR if widths == 1 else BAR_OF_WIDTHS
                kept = over <= bar and (widths > 1 or more <= MORE_GAP)
                print(
                    f"{platform}, {num} blocks{', every fourth wider' * (widths > 1)}, {own.problem.num_ops} ops: over "
                    f"its blocks {over:.4f} (bar {bar}), gap {100 * (own.gap or 0.0):.2f}%, {100 * more:+.2f}% over a "
                    f"block's ({own.bound.argument})",
                    flush=True,
                )
                yield kept


def models(given: argparse.Namespace) -> Iterator[bool]:
    """Whether a short search of a deep model is as good as a long one."""
    sizes = DecoderSizes(
        layers=given.layers, hidden=256, heads=8, key_heads=2, intermediate=688, vocabulary=2048, tokens=64
    )
    graph, platform = graph_of(llama_decoder("deep", sizes).build(0)), load_platform("i9-12900k-uhd770-flex170")
    problem = analytic_costs(graph, platform)
    for execution in Execution:
        values = []
        for seconds in (given.short, given.long):
            options = SolveOptions("auto", budget_s=seconds * given.slow, semantics=Semantics(execution))
            found = solve(problem, make_placer("auto", is_cheap=True), options).value_s
            assert found is not None
            values.append(found)
        print(
            f"decoder, {given.layers} layers, {problem.num_ops} ops, {execution.value}: {given.short:g} s over "
            f"{given.long:g} s {values[0] / values[1]:.4f} (bar {BAR_OF_TIME})",
            flush=True,
        )
        yield values[0] <= BAR_OF_TIME * values[1]


def steps() -> bool:
    """Whether a step of windows costs about as much in a large graph."""
    rate = {}
    for num_ops in (250, 10_000):
        problem = layered(num_ops)
        units, placer = problem_of(problem), make_placer("windows", is_cheap=True)
        placer.prepare(units, takes_order=True)
        inner = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
        recorder = RecordingEvaluator(inner, Budget(evaluations=400_000))
        begin_s = time.process_time()
        placer.search(units, recorder, Limits(num_workers=1))
        rate[num_ops] = recorder.num_evaluations / (time.process_time() - begin_s)
    slower = rate[250] / rate[10_000]
    print(
        f"windows: {rate[250]:,.0f} proposals a CPU second at 250 ops, {rate[10_000]:,.0f} at 10,000: "
        f"{slower:.2f} times (bar {SLOWER})"
    )
    return slower <= SLOWER


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", default="4,16,64,256")
    parser.add_argument("--platforms", default=",".join(PLATFORMS))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--short", type=float, default=10.0)
    parser.add_argument("--long", type=float, default=600.0)
    parser.add_argument("--slow", type=float, default=1.0)
    parser.add_argument("--only", default="chains,models,steps")
    given = parser.parse_args()
    print(machine())
    parts, kept = given.only.split(","), []
    kept += [steps()] if "steps" in parts else []
    kept += [*(chains(given) if "chains" in parts else []), *(models(given) if "models" in parts else [])]
    print(f"{sum(kept)} of {len(kept)} bars are kept")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
