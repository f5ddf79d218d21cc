"""How fast parts are: simulations, list schedules, cuts, proposals of annealing, tasks of the torch engine.

Every answer is checked first: makespans against the reference simulator of the tests, schedules for inputs that are
there before an op starts, cuts against brute force, what tasks hand on. Random graphs have two inputs an op, on four
devices. Exit status 1 when a bar is missed: 20 us a simulation of 261 ops over independent links and 120 us for 1,000;
HEFT 20 ms for 1,000 ops and 10 s for 100,000; a cut of 10,000 ops 1 s; 50,000 proposals of annealing a second for 261
ops; 15 us an empty task of the torch engine.

Usage: python benchmarks/speed.py [simulator heft cut annealing torch_tasks] [--largest 100000]
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from machine import options

from hsdag.commands.sources import build_problem
from hsdag.methods.anneal.sa import SaPlacer
from hsdag.methods.cuts.cut_graph import BoundaryCosts, pair_cut
from hsdag.methods.incumbent import Limits
from hsdag.methods.lists.schedulers import HeftPlacer
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate_makespans
from hsdag.runtime.torch.devices import LogicalDevice, logical_devices
from hsdag.runtime.torch.executor import TorchExecutor
from hsdag.runtime.torch.graph import Feed, TorchGraph, TorchNode
from hsdag.runtime.torch.program import Program, build_program
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.runtime.simulator.reference_simulator import Reference

ROUNDS = 5
SEQUENTIAL = Semantics(Execution.SEQUENTIAL)


def layered(num_ops: int, seed: int = 1, num_devices: int = 4) -> ScheduleProblem:
    """Ops that each read two of those shortly before them."""
    rng = np.random.default_rng(seed)
    dst = np.repeat(np.arange(1, num_ops), 2)
    src = dst - 1 - np.minimum(rng.geometric(1 / 12, len(dst)) - 1, dst - 1)
    return ScheduleProblem.from_arrays(
        rng.uniform(1e-5, 1e-3, (num_ops, num_devices)),
        np.unique(np.stack([src, dst], axis=1), axis=0),
        output_bytes=rng.integers(1, 1_000_000, num_ops),
        link_latency_s=1e-5,
        link_bandwidth_bytes_per_s=1e10,
    )


def median_s(work: Callable[[], object]) -> float:
    """Of several calls, after one that is not timed."""
    work()
    samples = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        samples.append(time.perf_counter() - begin)
    return float(np.median(samples))


def expect(is_right: bool, what: str) -> None:
    """Exit where an answer is wrong."""
    if not is_right:
        sys.exit(f"wrong: {what}")


def simulator(largest: int) -> Iterator[tuple[str, float, float]]:
    """Seconds of a simulation, by kind of link and number of ops."""
    small, rng = layered(80, 5), np.random.default_rng(6)
    placements = rng.integers(0, 4, (5, 80))
    for links in (LinkSharing.INDEPENDENT, LinkSharing.EGRESS, LinkSharing.CHANNEL):
        found = simulate_makespans(small, placements, Semantics(links=links), num_threads=1)
        expected = [Reference(small, row.tolist(), links=links.value).work_conserving() for row in placements]
        expect(np.allclose(found, expected, rtol=1e-9, atol=0), f"makespans over {links.value} links")
        for num_ops, bar_s in ((261, 20e-6), (1000, 120e-6), (10_000, np.inf), (100_000, np.inf)):
            if num_ops > largest or (links is not LinkSharing.INDEPENDENT and num_ops > 1000):
                continue
            problem, count = layered(num_ops), max(1, 1_000_000 // num_ops)
            drawn = rng.integers(0, 4, (count, num_ops))
            how = Semantics(links=links)
            batch_s = median_s(lambda p=problem, d=drawn, h=how: simulate_makespans(p, d, h, num_threads=1))
            bar = bar_s if links is LinkSharing.INDEPENDENT else np.inf
            yield f"simulation, {num_ops} ops, {links.value} links", batch_s / count, bar


def heft(largest: int) -> Iterator[tuple[str, float, float]]:
    """Seconds of HEFT's schedule, the reading of the problem included."""
    for num_ops, bar_s in ((1000, 0.020), (10_000, np.inf), (100_000, 10.0)):
        if num_ops > largest:
            continue
        problem = layered(num_ops)
        found = HeftPlacer().schedule(problem)
        src, dst = problem.edge_src, problem.edge_dst
        home, away = found.device[src], found.device[dst]
        sent_s = (
            problem.link_latency_s[home, away] + problem.edge_bytes / problem.link_bandwidth_bytes_per_s[home, away]
        )
        ready_s = found.end_s[src] + np.where(home == away, 0.0, sent_s)
        expect(bool(np.all(found.start_s[dst] >= ready_s)), "an op of HEFT's starts before its inputs are there")
        yield f"HEFT, {num_ops} ops", median_s(lambda p=problem: HeftPlacer().schedule(p)), bar_s


def cut(largest: int) -> Iterator[tuple[str, float, float]]:
    """Seconds of the exact minimum cut of two devices."""
    every = np.array(list(itertools.product(range(2), repeat=12)))
    for seed in range(20):
        small = layered(12, seed, 2)
        found = pair_cut(BoundaryCosts.of(small), 0, 1)
        assert found is not None
        value_s = simulate_makespans(small, found.placement[None], SEQUENTIAL)[0]
        best_s = simulate_makespans(small, every, SEQUENTIAL).min()
        expect(bool(np.isclose(value_s, best_s, rtol=1e-9)), f"the cut of problem {seed}")
    num_ops = min(largest, 10_000)
    problem = layered(num_ops, num_devices=2)
    yield f"minimum cut, {num_ops} ops", median_s(lambda: pair_cut(BoundaryCosts.of(problem), 0, 1)), 1.0


def annealing(largest: int) -> Iterator[tuple[str, float, float]]:
    """Seconds of a proposal of annealing, with one chain; what every search begins with is subtracted."""
    for problem, bar_s in ((build_problem("llama-layer", "p100x4"), 1 / 50_000), (layered(10_000), np.inf)):
        if problem.num_ops > largest:
            continue
        units, how = problem_of(problem), Semantics()
        start = make_placer("heft").search(units, ScheduleEvaluator(problem, how)).plan
        assert start is not None
        placer = SaPlacer(replace(SaPlacer().options, num_chains=1, lists=0.0, most_idle_rounds=10**6, coldest=0.005))

        def spent_s(most: int, search: tuple = (problem, units, how, start, placer)) -> float:
            problem, units, how, start, placer = search
            recorder = RecordingEvaluator(ScheduleEvaluator(problem, how), Budget(evaluations=most))
            begin_s = time.process_time()
            placer.search(units, recorder, Limits(num_workers=1, known=(start,)))
            return time.process_time() - begin_s

        spent_s(50)
        many = 50 + 15_000_000 // problem.num_ops
        proposal_s = (spent_s(many) - spent_s(50)) / (many - 50)
        yield f"proposal of annealing, {problem.num_ops} ops", proposal_s, bar_s


def chains(num_tasks: int, width: int, devices: Sequence[LogicalDevice], is_crossing: bool) -> Program:
    """``width`` chains of tasks that hand their input on, over the devices in turn or every task anywhere."""
    reads = [0 if i < width else i - width + 1 for i in range(num_tasks)]
    tasks = (TorchNode(f"t{i}", "Empty", ((u, 0),), lambda xs: (xs[0],)) for i, u in enumerate(reads))
    fed = TorchNode("x", feed=Feed("x", torch.float32, (4,)))
    graph = TorchGraph("empty", (fed, *tasks), {f"y{i}": (num_tasks - i, 0) for i in range(width)})
    in_turn = np.array([0, *(i % width % len(devices) for i in range(num_tasks))])
    anywhere = np.random.default_rng(0).integers(0, len(devices), num_tasks + 1)
    return build_program(graph, anywhere if is_crossing else in_turn, devices)


def torch_tasks(largest: int) -> Iterator[tuple[str, float, float]]:
    """Seconds of an empty task of the torch engine on the CPU; copies between devices count as tasks, too."""
    for name, width, is_crossing in (("16 chains", 16, False), ("one chain", 1, False), ("tasks anywhere", 16, True)):
        program = chains(min(largest, 10_000), width, logical_devices(4, "cpu"), is_crossing)
        with TorchExecutor(program) as executor:
            executor.load({"x": np.arange(4, dtype=np.float32)})
            found = []
            for _ in range(3 + ROUNDS):
                request = executor.submit()
                expect(all(x.tolist() == [0.0, 1.0, 2.0, 3.0] for x in request.wait().values()), f"outputs of {name}")
                found.append(request.latency / program.tasks.num_tasks)
        yield f"empty task, {name}, {program.tasks.num_tasks} tasks", float(np.median(found[3:])), 15e-6


PARTS = {each.__name__: each for each in (simulator, heft, cut, annealing, torch_tasks)}


def main() -> int:
    given, kept = options(__doc__, PARTS, largest=100_000), True
    for name in given.parts:
        for what, seconds, bar_s in PARTS[name](given.largest):
            kept &= seconds <= bar_s
            bar = f" (bar {1e6 * bar_s:,.0f} us)" if np.isfinite(bar_s) else ""
            print(f"{what:45s} {1e6 * seconds:14,.1f} us{bar}, {1 / seconds:,.0f} a second", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
