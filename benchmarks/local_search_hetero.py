"""Proposals a second of an annealing of HETERO's sequential time, on one core, submodels and launches included.

Every proposal moves one op to another device, one to that of a neighbour, or a stretch of the topological order to one
device. Three temperatures are held, at which half, a fifth and a hundredth of the proposals are accepted, then one
annealing cools as ``sa`` does: from the second to a thousandth of it. A boundary takes 0.3 to 0.6 ms, as measured
between CPU devices; op times are drawn. Each annealing has to end with the value that ``HeteroCosts`` gives.

    python benchmarks/local_search_hetero.py --proposals 1000000
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from machine import machine
from submodels_speed import local, residual

from hsdag.ir.build import graph_of
from hsdag.ir.colocation import colocate
from hsdag.ir.compiled import bare
from hsdag.ir.graph import ComputationGraph, FloatArray, IntArray
from hsdag.models import build_model
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.hetero_machine import HeteroMachine, accept, hetero_machine, propose, reject
from hsdag.runtime.problems.cost_model import CostModel, CostSource

BAR_PER_S = 100_000
ACCEPTED = (0.5, 0.2, 0.01)
LONGEST_STRETCH = 20
LAST_TEMPERATURE = 1e-3


def problem(name: str, num_devices: int, rng: np.random.Generator) -> tuple[HeteroCosts, IntArray]:
    """Costs of a graph, and the unit of every op."""
    kind, _, size = name.partition("-")
    if kind in ("residual", "local"):
        graph: ComputationGraph = {"residual": residual, "local": local}[kind](int(size), rng)
    else:
        graph = graph_of(build_model(name))
    n, d = graph.num_ops, num_devices
    share = graph.flops + graph.output_bytes
    nominal_s = 0.06 * (share + share.mean()) / (2 * share.sum()) if share.any() else np.full(n, 0.06 / n)
    time_s = nominal_s[:, None] * np.exp(rng.normal(0.0, 0.7, (n, d)))
    latency_s = rng.uniform(1e-4, 2e-4, (d, d))
    costs = CostModel(time_s, rng.uniform(2e-4, 4e-4, d), latency_s, np.full((d, d), 5e9), CostSource.FILE)
    return HeteroCosts.of(graph, costs), colocate(graph).sets.labels


@bare
def walk(
    h: HeteroMachine,
    near: IntArray,
    first_near: IntArray,
    drawn: FloatArray,
    hot_s: float,
    cold_s: float,
    units: IntArray,
    devices: IntArray,
) -> int:
    """Metropolis, once for each row of uniform numbers ``drawn`` [P, 5], cooling as it goes; how many were accepted.

    The neighbours of unit u are ``near[first_near[u]:first_near[u + 1]]``; ``units`` and ``devices`` are scratch.
    """
    num_units, num_devices, num_accepted, last = len(h.placement), len(h.launch_s), 0, len(drawn) - 1
    for p in range(len(drawn)):
        kind, where, which, length, luck = drawn[p, 0], drawn[p, 1], drawn[p, 2], drawn[p, 3], drawn[p, 4]
        begin, count = int(where * num_units), 1
        to = (h.placement[begin] + 1 + int(which * (num_devices - 1))) % num_devices
        if kind > 0.85:
            count = min(2 + int(length * LONGEST_STRETCH), num_units - begin)
        elif kind > 0.5 and first_near[begin] < first_near[begin + 1]:
            place = first_near[begin] + int(which * (first_near[begin + 1] - first_near[begin]))
            if h.placement[near[place]] != h.placement[begin]:
                to = h.placement[near[place]]
        for i in range(count):
            units[i], devices[i] = begin + i, to
        temperature_s = hot_s * (cold_s / hot_s) ** (p / max(last, 1))
        limit_s = h.run[0].value_s - temperature_s * np.log(luck)
        if propose(h, units, devices, count, limit_s) <= limit_s:
            accept(h)
            num_accepted += 1
        else:
            reject(h)
    return num_accepted


class Search:
    """A machine, its neighbours, and room for a move."""

    def __init__(self, costs: HeteroCosts, unit: IntArray, rng: np.random.Generator) -> None:
        graph_units = int(unit.max()) + 1
        nodes = costs.collector.nodes
        ends = unit[nodes.op[np.stack((nodes.net.src, nodes.net.dst))[:, nodes.net.out_edge]]]
        ends = np.concatenate([ends, ends[::-1]], axis=1)
        ends = ends[:, ends[0] != ends[1]]
        self.near = ends[1][np.argsort(ends[0], kind="stable")]
        self.first_near = np.searchsorted(np.sort(ends[0]), np.arange(graph_units + 1))
        self.costs, self.unit, self.rng = costs, unit, rng
        self.machine = hetero_machine(costs, unit, np.zeros(graph_units, dtype=np.int64))
        self.scratch = np.zeros(graph_units, dtype=np.int64), np.zeros(graph_units, dtype=np.int64)

    def run(self, proposals: int, hot_s: float, cold_s: float) -> tuple[float, float]:
        """The share that was accepted, and proposals a second."""
        drawn = 1.0 - self.rng.random((proposals, 5))
        drawn[:, :4] = 1.0 - drawn[:, :4]
        begin_s = time.process_time()
        num = walk(self.machine, self.near, self.first_near, drawn, hot_s, cold_s, *self.scratch)
        return num / proposals, proposals / (time.process_time() - begin_s)

    def temperature_s(self, accepted: float, hot_s: float) -> float:
        """The temperature at which the share ``accepted`` is, searched downwards from ``hot_s``."""
        for _ in range(60):
            if self.run(2000, hot_s, hot_s)[0] <= accepted:
                break
            hot_s *= 0.7
        return hot_s


def measured(name: str, num_devices: int, proposals: int, seed: int) -> str:
    """One row."""
    rng = np.random.default_rng(seed)
    costs, unit = problem(name, num_devices, rng)
    search = Search(costs, unit, rng)
    figures, temperature_s = [], 0.1
    temperatures_s = []
    for accepted in ACCEPTED:
        temperature_s = search.temperature_s(accepted, temperature_s)
        temperatures_s.append(temperature_s)
        share, rate = search.run(proposals // 10, temperature_s, temperature_s)
        figures.append(f"{share:6.1%} {rate:9,.0f}/s")
    _, rate = search.run(proposals, temperatures_s[1], temperatures_s[1] * LAST_TEMPERATURE)
    placement = search.machine.placement[unit]
    assert np.isclose(search.machine.run[0]["value_s"], costs.latency_s(placement[None])[0], rtol=1e-9)
    alone_s = min(float(costs.latency_s(np.full((1, len(unit)), d))[0]) for d in range(num_devices))
    better = search.machine.run[0]["value_s"] / alone_s
    verdict = "" if rate >= BAR_PER_S else f", below {BAR_PER_S:,}"
    return (
        f"{name:18s} {len(search.machine.placement):4d} units {num_devices} devices  {'  '.join(figures)}"
        f"   whole annealing {rate:9,.0f}/s{verdict}, ends at {better:.2f} of the best device"
    )


def main() -> None:
    """Print one row per problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["resnet50", "inception_v3", "bert_base_uncased", "llama-decoder", "residual-700", "local-700"]
    parser.add_argument("--problems", nargs="+", default=names)
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--proposals", type=int, default=300_000, help="of an annealing")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine())
    for name in options.problems:
        for num_devices in options.devices:
            print(measured(name, num_devices, options.proposals, options.seed), flush=True)


if __name__ == "__main__":
    main()
