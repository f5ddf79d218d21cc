"""Inception-V3 on two one-thread CPU devices: how much of the second device work-conserving execution makes use of.

The model is profiled, some placements are searched under simulated work-conserving costs and the best of them is taken
by measuring, as ``hsdag place`` does. All is then measured in turn, round by round: one device alone, HETERO with
the same placement, the executor, the executor level by level (barrier), two independent copies side by side (what the
machine can do at most), and the whole CPU with both threads (what a user has without any placement). Then throughput
with four requests in flight, with a placement that balances the devices' load, against HETERO with the same placement
and as many requests.

Every module of Inception ends in a join that all branches of the next one read. So where a placement balances the
modules, the barrier costs nothing; how much it costs otherwise is told for random placements. It also profits from
subgraphs that were merged for the work-conserving schedule; what it takes without that is shown too.

Bars: at most 0.80 of the best single device and 0.70 of HETERO, below the barrier, and throughput no less than
HETERO's. Exit status 1 when one is missed; the ratios are medians over rounds.

Usage: python benchmarks/overlap_inception.py [--model inception_v3] [--rounds 30] [--random 10] [--precision f32]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from machine import machine

from hsdag.commands.profile import random_placements, run_profile
from hsdag.ir.build import graph_of
from hsdag.ir.device import hetero_properties, parse_devices
from hsdag.ir.prepared import prepare
from hsdag.models import save_model_files
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.executor import TaskTimes
from hsdag.runtime.measuring.caches import ProfileCache
from hsdag.runtime.measuring.inferences import steady_period_s
from hsdag.runtime.openvino_backend import Cut, CutOptions, WorkConservingModel, compile_on
from hsdag.runtime.platforms.devices import resolve_devices
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.timeline.trace import write_trace

SINGLE_BAR, HETERO_BAR, BARRIER_BAR, THROUGHPUT_BAR = 0.80, 0.70, 1.0, 1.0
REQUESTS, INFERENCES, SEARCHES = 4, 48, 4
FOR_THROUGHPUT = CutOptions(objective=THROUGHPUT)


class Bench:
    """One model, two devices, and all ways to run it."""

    def __init__(self, model: str, precision: str, folder: Path) -> None:
        own = f"INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT={precision}"
        self.names = f"CPU_0=CPU[{own}],CPU_1=CPU[{own}]"
        self.path = save_model_files(model, folder / f"{model}.xml")
        self.specs = parse_devices(self.names)
        self.core = ov.Core()
        for spec in self.specs:
            spec.register(self.core)
        self.source = self.core.read_model(self.path)
        self.graph = graph_of(self.source)
        self.precision = precision
        generator = np.random.default_rng(0)
        self.inputs = [
            ov.Tensor(generator.random(tuple(port.get_shape())).astype(port.get_element_type().to_dtype()))
            for port in self.source.inputs
        ]

    def request(self, compiled: Any) -> Any:
        """A request of a compiled model that reads the inputs."""
        request = compiled.create_infer_request()
        for k, tensor in enumerate(self.inputs):
            request.set_input_tensor(k, tensor)
        return request

    def whole(self, device: int | None) -> Any:
        """The model on one of the two devices, or on the CPU as it is."""
        if device is None:
            return self.core.compile_model(self.source, "CPU", {"INFERENCE_PRECISION_HINT": self.precision})
        return self.core.compile_model(self.source, self.specs[device].openvino_name)

    def hetero(self, placement: np.ndarray) -> Any:
        """HETERO with a placement [N]."""
        names = [spec.openvino_name for spec in self.specs]
        model = prepare(self.source, self.graph).place([names[d] for d in placement])
        return self.core.compile_model(model, "HETERO:" + ",".join(names), hetero_properties(self.specs))

    def work_conserving(self, placement: np.ndarray, options: CutOptions | None = None) -> WorkConservingModel:
        """The executor with a placement [N]."""
        names = [self.specs[d].openvino_name for d in placement]
        return compile_on(self.core, self.source, self.graph, self.specs, names, options=options)


def searched(problem: Problem, cost: Callable[[np.ndarray], np.ndarray], seed: int = 0) -> np.ndarray:
    """A placement [U] of little simulated cost: from contiguous halves, by moves of runs of units."""
    count = problem.num_units
    position = problem.units.graph.position
    starts = np.stack([(position >= k).astype(np.int64) for k in np.linspace(0, count, 9).astype(int)])
    best = starts[np.argmin(cost(problem.expand(starts)))]
    least_s, generator = float(cost(problem.expand(best[None]))[0]), np.random.default_rng(seed)
    order = np.argsort(position)
    for _ in range(40):
        moves = np.repeat(best[None], 64, axis=0)
        for move in moves:
            length = int(generator.geometric(0.3))
            first = int(generator.integers(count))
            move[order[first : first + length]] ^= 1
        costs_s = cost(problem.expand(moves))
        if costs_s.min() < least_s:
            best, least_s = moves[np.argmin(costs_s)], float(costs_s.min())
    return best


def timed(calls: dict[str, Callable[[], object]], rounds: int, warm_ups: int = 4) -> dict[str, np.ndarray]:
    """Seconds of each call in each round; all run in an order drawn anew, for a core that was idle starts slowly."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    generator = np.random.default_rng(0)
    for _ in range(rounds + warm_ups):
        for name in generator.permutation(list(calls)).tolist():
            begin_s = time.perf_counter()
            calls[name]()
            taken[name].append(time.perf_counter() - begin_s)
    return {name: np.array(times_s[warm_ups:]) for name, times_s in taken.items()}


def whereabouts(cut: Cut, times: TaskTimes, single_s: float) -> str:
    """Where the time of two devices went in the last inference, from its timeline."""
    makespan_s, device = float(np.nanmax(times.end_s)), cut.device
    free_s, waited_s = np.zeros(2), np.zeros(2)
    ready_s = np.zeros(len(device))
    for u, v in cut.edges.tolist():
        ready_s[v] = max(ready_s[v], times.end_s[u])
    for s in np.argsort(times.start_s).tolist():
        waited_s[device[s]] += max(times.start_s[s] - max(ready_s[s], free_s[device[s]]), 0.0)
        free_s[device[s]] = times.end_s[s]
    busy_s = np.bincount(device, times.end_s - times.start_s, minlength=2)
    idle_s = 2 * makespan_s - busy_s.sum() - waited_s.sum()
    shares = {
        "work of the whole model": single_s,
        "boundaries (layouts, launches, joins computed twice)": busy_s.sum() - single_s,
        "dispatch": waited_s.sum(),
        "idling for want of ready work": idle_s,
    }
    return "\n".join(f"    {1e3 * s:7.2f} ms  {s / (2 * makespan_s):6.1%}  {what}" for what, s in shares.items())


def latency(bench: Bench, placement: np.ndarray, rounds: int, trace: Path | None) -> dict[str, float]:
    """Measure one inference at a time; the ratios that bars are about."""
    executor = bench.work_conserving(placement)
    own = bench.request(executor)
    by_level = [CutOptions(barrier=True), CutOptions(barrier=True, merge=False)]
    barrier, not_merged = (bench.request(bench.work_conserving(placement, options)) for options in by_level)
    single = [bench.request(bench.whole(d)) for d in (0, 1)]
    hetero = bench.hetero(placement)
    requests = {
        "CPU_0 alone": single[0],
        "CPU_1 alone": single[1],
        "HETERO, same placement": bench.request(hetero),
        "work-conserving": own,
        "level by level (barrier)": barrier,
        "the same, not merged": not_merged,
        "whole CPU, both threads": bench.request(bench.whole(None)),
    }

    def side_by_side() -> None:
        for request in single:
            request.start_async()
        for request in single:
            request.wait()

    taken = timed({**{n: r.infer for n, r in requests.items()}, "two copies side by side": side_by_side}, rounds)
    best = min(("CPU_0 alone", "CPU_1 alone"), key=lambda name: float(np.median(taken[name])))
    print(
        f"  {len(executor.cut.subgraphs)} subgraphs; HETERO makes {hetero.get_property('HETERO_NUMBER_OF_SUBMODELS')}"
    )
    for name, times_s in taken.items():
        ratio = float(np.median(times_s / taken[best]))
        print(f"  {name:26} {1e3 * np.median(times_s):8.2f} ms  {ratio:.3f} of {best}")
    spent = whereabouts(executor.cut, own.times, float(np.median(taken[best])))
    print(f"  of the time of both devices in the last inference:\n{spent}")
    difference = np.abs(own.results[0] - single[0].get_output_tensor(0).data).max()
    print(f"  outputs differ by {difference / np.abs(single[0].get_output_tensor(0).data).max():.1e} of the largest")
    if trace is not None:
        write_trace(own.timeline, trace)
    own_s = taken["work-conserving"]
    return {
        "single": float(np.median(own_s / taken[best])),
        "hetero": float(np.median(own_s / taken["HETERO, same placement"])),
        "barrier": float(np.median(own_s / taken["level by level (barrier)"])),
    }


def fastest(bench: Bench, placements: list[np.ndarray], rounds: int) -> np.ndarray:
    """The placement [N] with the shortest inference, measured in turn."""
    requests = [bench.request(bench.work_conserving(placement)) for placement in placements]
    taken = timed({str(k): request.infer for k, request in enumerate(requests)}, rounds)
    return placements[int(np.argmin([np.median(taken[str(k)]) for k in range(len(placements))]))]


def against_barrier(bench: Bench, placements: list[np.ndarray], rounds: int) -> float:
    """The median ratio to the barrier over placements that nobody searched for."""
    ratios = []
    for placement in placements:
        own = bench.request(bench.work_conserving(placement))
        barrier = bench.request(bench.work_conserving(placement, CutOptions(barrier=True)))
        taken = timed({"own": own.infer, "barrier": barrier.infer}, rounds)
        ratios.append(float(np.median(taken["own"] / taken["barrier"])))
    print("  " + ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios)))
    return float(np.median(ratios))


def balanced(bench: Bench, problem: Problem, costs: WorkConservingCosts, trials: int = SEARCHES + 2) -> np.ndarray:
    """The best of some placements [N] for throughput, measured in turn; each is searched under corrected costs.

    A device's work is scaled by what it was measured to take with requests in flight, where caches are shared.
    """
    factors, found = np.ones_like(costs.parameters), []
    for trial in range(trials):
        corrected = replace(costs, parameters=costs.parameters * factors)
        placement = problem.expand(searched(problem, corrected.period_s, seed=trial))
        executor = bench.work_conserving(placement, FOR_THROUGHPUT)
        requests = [bench.request(executor) for _ in range(REQUESTS)]
        steady_period_s(requests, INFERENCES // 2)
        taken_s = np.mean([request.times.end_s - request.times.start_s for request in requests], axis=0)
        load_s = np.bincount(executor.cut.device, taken_s, minlength=2)
        factors[:2] *= np.sqrt(load_s / corrected.period_s(placement[None])[0])
        found.append((placement, requests))
    taken = timed({str(k): partial(steady_period_s, pair[1], INFERENCES // 2) for k, pair in enumerate(found)}, 5, 0)
    return found[int(np.argmin([np.median(taken[str(k)]) for k in range(trials)]))][0]


def throughput(bench: Bench, placement: np.ndarray, rounds: int) -> float:
    """Inferences per second with four requests in flight, over those of HETERO.

    Beside them two copies of the whole model, one on each device: what the machine can do at most.
    """
    compiled = {"work-conserving": bench.work_conserving(placement, FOR_THROUGHPUT), "HETERO": bench.hetero(placement)}
    requests = {name: [bench.request(model) for _ in range(REQUESTS)] for name, model in compiled.items()}
    requests["two copies side by side"] = [bench.request(bench.whole(d)) for d in (0, 1)]
    periods_s: dict[str, list[float]] = {name: [] for name in requests}
    for _ in range(max(rounds // 3, 5)):
        for name, of_model in requests.items():
            periods_s[name].append(steady_period_s(of_model, INFERENCES))
    print(f"  {len(compiled['work-conserving'].cut.subgraphs)} subgraphs")
    for name, taken_s in periods_s.items():
        print(f"  {name:26} {1 / np.median(taken_s):8.2f} inferences per second")
    return float(np.median(np.divide(periods_s["HETERO"], periods_s["work-conserving"])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="inception_v3")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--random", type=int, default=10, help="random placements to compare with the barrier on")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(options.model, options.precision, folder)
        profiled = run_profile(bench.path, resolve_devices(bench.names, None), cache=ProfileCache(folder / "cache"))
        costs = WorkConservingCosts.of(bench.graph, profiled.profile.costs())
        problem = profiled.problem
        found = [problem.expand(searched(problem, costs.latency_s, seed)) for seed in range(SEARCHES)]
        for_latency = fastest(bench, found, options.rounds // 2)
        print(f"One inference at a time, {options.rounds} rounds (placement searched under simulated costs):")
        ratios = latency(bench, for_latency, options.rounds, options.trace)
        print(f"Over the barrier, {options.random} random placements:")
        drawn = random_placements(problem, options.random, np.random.default_rng(1))
        ratios["random"] = against_barrier(bench, list(problem.expand(drawn)), max(options.rounds // 3, 5))
        print(f"{REQUESTS} requests in flight:")
        ratios["throughput"] = throughput(bench, balanced(bench, problem, costs), options.rounds)
    bars = {"single": SINGLE_BAR, "hetero": HETERO_BAR, "barrier": BARRIER_BAR}
    missed = [name for name, bar in bars.items() if ratios[name] > bar or (name == "barrier" and ratios[name] == bar)]
    missed += ["throughput"] * (ratios["throughput"] < THROUGHPUT_BAR)
    for name, bar in bars.items():
        print(f"work-conserving over {name}: {ratios[name]:.3f} (bar {bar:.2f})")
    print(f"work-conserving over barrier, median of random placements: {ratios['random']:.3f}")
    print(f"throughput over HETERO's: {ratios['throughput']:.3f} (bar {THROUGHPUT_BAR:.2f})")
    if options.json:
        options.json.write_text(json.dumps(ratios) + "\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
