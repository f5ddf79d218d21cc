"""Simulated values of objectives, and the load of the busiest resource in steady state.

Legend: N ops, D devices, B placements.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from hsdag.base.kernels import bare, inlined, inner, run_kernel
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.objectives import Objective, Quantity
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Semantics
from hsdag.runtime.simulator.execution import drained_s
from hsdag.runtime.simulator.machine import (
    BLOCKING,
    CHANNEL,
    EGRESS,
    INDEPENDENT,
    Machine,
    assign_devices,
    link_s,
    machine_for,
)
from hsdag.runtime.simulator.simulation import all_supported, checked_placements, simulate, simulate_makespans


def simulated_values(
    objective: Objective,
    problem: ScheduleProblem,
    placements: IntArray,
    semantics: Semantics,
    priority: ArrayLike | None = None,
) -> FloatArray:
    """Return [B] the values of ``placements`` [B, N] with ranks [N] or [B, N]; infinite where an op is not supported.

    Raises OptionError for semantics under which the objective is not defined, and for unknown power.
    """
    problem.check(objective)
    ranks = None if priority is None else np.asarray(priority)

    def figures(quantity: Quantity) -> FloatArray:
        if quantity is Quantity.LATENCY:
            return simulate_makespans(problem, placements, semantics, ranks)
        if quantity is Quantity.PERIOD:
            return period_s(problem, placements, semantics)
        values, legal = np.full(len(placements), np.inf), all_supported(problem, placements)
        if quantity is Quantity.ENERGY and not problem.excess.size:
            joules = problem.time_s * problem.power_w
            values[legal] = joules[np.arange(problem.num_ops), placements[legal]].sum(axis=1)
            return values
        for b in np.flatnonzero(legal).tolist():
            run = simulate(problem, placements[b], semantics, ranks if ranks is None or ranks.ndim == 1 else ranks[b])
            values[b] = run.busy_s @ problem.power_w if quantity is Quantity.ENERGY else run.peak_memory_bytes.max()
        return values

    return objective.value(*map(figures, objective.quantities))


def period_s(problem: ScheduleProblem, placements: ArrayLike, semantics: Semantics | None = None) -> FloatArray:
    """Return [B] the simulated seconds between requests under ``placements`` [B, N], else infinite.

    That is the load of the busiest resource: a device's ops with their overheads, or a link's transfers with
    theirs. A result is sent once to each other device that reads it, or once in all by EGRESS. Each device has one
    bus under EGRESS, each ordered pair one channel under CHANNEL; INDEPENDENT links never fill up; under BLOCKING
    a transfer is added to the loads of both its devices. Devices that slow each other down all work side by side until
    the least load is done, and so on, overheads included. Sequential execution, one request after another,
    takes the makespan. The order does not matter.

    Raises PlacementError for placements of another length and for devices that are not there.
    """
    semantics = semantics or Semantics()
    if semantics.execution is Execution.SEQUENTIAL:
        links = LinkSharing.INDEPENDENT if semantics.links is LinkSharing.BLOCKING else semantics.links
        return simulate_makespans(problem, placements, replace(semantics, links=links, order=None))
    table = checked_placements(problem, np.asarray(placements))
    supported = all_supported(problem, table)
    supported_s = np.empty(int(supported.sum()))
    num_devices = problem.num_devices
    load_s = np.empty(num_devices * (1 + num_devices))  # devices, then buses or channels
    steps = float(table.size + len(table) * len(problem.edge_src))
    run_kernel(_run_many, steps, machine_for(problem, semantics), table[supported], load_s, supported_s)
    periods_s = np.full(len(table), np.inf)
    periods_s[supported] = supported_s
    return periods_s


@bare
def _run_many(m: Machine, placements: IntArray, load_s: FloatArray, periods_s: FloatArray) -> None:
    """Fill ``periods_s`` [B]; ``load_s`` is room for the loads of all resources."""
    for b in range(len(placements)):
        assign_devices(m, placements[b])
        periods_s[b] = period_of_loaded(m, load_s)


@inner
def period_of_loaded(m: Machine, load_s: FloatArray) -> float:
    """Return the seconds of the busiest resource under the loaded placement; ``load_s`` is as in ``_run_many``."""
    for i in range(len(load_s)):
        load_s[i] = 0.0
    for v in range(len(m.order)):
        home = m.ops[v].device
        load_s[home] += m.time_s[v, home] + m.run[0].op_overhead_s
        if m.run[0].links != INDEPENDENT:
            for k in range(m.ops[v].first, m.ops[v + 1].first):
                if m.edges[k].result == k:
                    _send(m, v, k, load_s)
    longest_s = 0.0
    for i in range(len(load_s)):
        longest_s = max(longest_s, load_s[i])
    return max(longest_s, drained_s(load_s, m.excess)) if len(m.excess) > 0 else longest_s


@inlined
def _send(m: Machine, v: int, result: int, load_s: FloatArray) -> None:
    """Add the transfers of a result of v to the loads of what carries them."""
    home, num_devices = m.ops[v].device, len(m.devices)
    slowest_s = -1.0
    for k in range(result, m.ops[v + 1].first):
        away = m.ops[m.edges[k].consumer].device
        if m.edges[k].result != result or away == home or m.devices[away].stamp == result:
            continue
        m.devices[away].stamp = result
        cost_s = link_s(m, k, home, away)
        slowest_s = max(slowest_s, cost_s)
        if m.run[0].links == CHANNEL:
            load_s[num_devices * (1 + home) + away] += cost_s + m.run[0].transfer_overhead_s
        elif m.run[0].links == BLOCKING:
            load_s[home] += cost_s + m.run[0].transfer_overhead_s
            load_s[away] += cost_s + m.run[0].transfer_overhead_s
    if m.run[0].links == EGRESS and slowest_s >= 0.0:
        load_s[num_devices + home] += slowest_s + m.run[0].transfer_overhead_s
