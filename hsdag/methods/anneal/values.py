"""Compiled evaluation of a chain's proposals, by the simulator, by list schedules or by HETERO's costs.

Legend: U placement units, E edges between them, D devices, N ops.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.base.kernels import ZERO, bare, inlined, inner, run_kernel
from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.methods.anneal.chain import ROUNDING, Chain, draw, end_proposal, is_kept
from hsdag.runtime.costs.hetero_costs import HeteroCosts, UnitCosts, placement_s, unit_costs
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order
from hsdag.runtime.simulator.execution import run_sequential
from hsdag.runtime.simulator.machine import ENTRY, Machine, Records, machine_for, pop, push, rewind
from hsdag.runtime.simulator.memory import MemoryPeaks, find_peaks, memory_peaks_of
from hsdag.runtime.simulator.simulation import mode_and_priority, run_loaded
from hsdag.runtime.simulator.values import period_of_loaded
from hsdag.search.evaluators.memory import MEMORY_TOLERANCE, one_inference

PRICE_OF_MEMORY = 10.0
"""Penalty for memory exceeded by as much as there is, as a share of the plan's value."""


class Lists(NamedTuple):
    """Costs of units, and arrays for one list schedule of them."""

    time_s: FloatArray  # [U, D] infinite where a device lacks the unit
    num_inputs: IntArray  # [U]
    first: IntArray  # [U + 1] the edges that leave u are first[u]:first[u + 1]
    reader: IntArray  # [E]
    size_bytes: FloatArray  # [E]
    latency_s: FloatArray  # [D, D], 0 on the diagonal
    s_per_byte: FloatArray  # [D, D], 0 on the diagonal
    sent_s: FloatArray  # [U, D] when the inputs from units outside the schedule have reached each device
    begun_s: FloatArray  # [D] when devices can start
    arrival_s: FloatArray  # [U, D] when the inputs scheduled so far have reached each device
    free_s: FloatArray  # [D] when devices become free
    waiting: IntArray  # [U] number of inputs that are not scheduled yet
    ready: Records  # [U] ENTRY, a heap of ready units by rank
    device: IntArray  # [U] result: the placement
    rank: FloatArray  # [U] result: the order, from 0
    end_s: FloatArray  # [U] result: when units end, including the overhead that follows


def lists_of(costs: ScheduleProblem) -> Lists:
    """Return ``Lists`` for the units of a problem."""
    by_src = np.argsort(costs.edge_src, kind="stable")
    off = ~np.eye(costs.num_devices, dtype=np.bool_)
    return lists_for(
        np.where(costs.supported, costs.time_s, np.inf) + costs.op_overhead_s,
        np.stack([costs.edge_src[by_src], costs.edge_dst[by_src]]),
        costs.edge_bytes[by_src],
        np.where(off, costs.link_latency_s, 0.0),
        np.where(off, 1.0 / costs.link_bandwidth_bytes_per_s, 0.0),
    )


def lists_for(
    time_s: FloatArray,
    edges: IntArray,
    size_bytes: FloatArray,
    latency_s: FloatArray,
    s_per_byte: FloatArray,
    sent_s: FloatArray | None = None,
    begun_s: FloatArray | None = None,
) -> Lists:
    """Return ``Lists`` from their tables.

    Args:
        edges: Sources and targets of the edges [2, E], sorted by source.
        sent_s: As in ``Lists``; by default 0.
        begun_s: As in ``Lists``; by default 0.
    """
    num, d = time_s.shape
    return Lists(
        time_s=time_s,
        num_inputs=np.bincount(edges[1], minlength=num).astype(np.int64),
        first=np.searchsorted(edges[0], np.arange(num + 1)).astype(np.int64),
        reader=edges[1].copy(),
        size_bytes=size_bytes,
        latency_s=latency_s,
        s_per_byte=s_per_byte,
        sent_s=np.zeros((num, d)) if sent_s is None else sent_s,
        begun_s=np.zeros(d) if begun_s is None else begun_s,
        arrival_s=np.zeros((num, d)),
        free_s=np.zeros(d),
        waiting=np.zeros(num, dtype=np.int64),
        ready=np.zeros(num, ENTRY),
        device=np.zeros(num, dtype=np.int64),
        rank=np.zeros(num),
        end_s=np.zeros(num),
    )


def no_lists(num_devices: int) -> Lists:
    """Return ``Lists`` without units."""
    links = np.zeros((num_devices, num_devices))
    return lists_for(np.zeros((0, num_devices)), np.zeros((2, 0), dtype=np.int64), np.zeros(0), links, links)


@bare
def schedule(g: Lists, pin: IntArray, rank: FloatArray) -> None:
    """Schedule ready units in the order of ``rank`` [U], and fill ``g.device``, ``g.rank`` and ``g.end_s``.

    A unit goes to the device of its pin [U] or, where that is D, to the device on which it ends first; it is never put
    into an idle gap. Ties go to the lower device index.
    """
    num, num_devices = g.time_s.shape
    size = ZERO
    for d in range(num_devices):
        g.free_s[d] = g.begun_s[d]
    for u in range(num):
        g.waiting[u] = g.num_inputs[u]
        for d in range(num_devices):
            g.arrival_s[u, d] = g.sent_s[u, d]
        if g.waiting[u] == 0:
            push(g.ready, ZERO, size, rank[u], u)
            size += 1
    place = 0
    while size > 0:
        u = pop(g.ready, ZERO, size)
        size -= 1
        home, end_s = _earliest(g, u, pin[u])
        g.device[u] = home
        g.rank[u] = place
        g.end_s[u] = end_s
        g.free_s[home] = end_s
        place += 1
        for k in range(g.first[u], g.first[u + 1]):
            v = g.reader[k]
            for d in range(num_devices):
                at_s = end_s + g.latency_s[home, d] + g.size_bytes[k] * g.s_per_byte[home, d]
                g.arrival_s[v, d] = max(g.arrival_s[v, d], at_s)
            g.waiting[v] -= 1
            if g.waiting[v] == 0:
                push(g.ready, ZERO, size, rank[v], v)
                size += 1


@inlined
def _earliest(g: Lists, u: int, pin: int) -> tuple[int, float]:
    """Return the device on which u ends first, or that of its pin, and when it ends there."""
    home, end_s = pin, np.inf
    for d in range(len(g.free_s)):
        if pin in (len(g.free_s), d):
            at_s = max(g.free_s[d], g.arrival_s[u, d]) + g.time_s[u, d]
            if at_s < end_s:
                home, end_s = d, at_s
    return home, end_s


class Scheduled(NamedTuple):
    """Evaluation of a chain's plans on a simulated machine.

    Tuples have one item, or none if it is not needed; then the code that would use it is not compiled.
    """

    machine: Machine
    first: IntArray  # [U + 1] the ops of unit u are member[first[u]:first[u + 1]]
    member: IntArray  # [N] positions of the ops in the topological order, by unit
    load_s: tuple[FloatArray, ...]  # [D + D * D] work array for the loads, if the value is a period
    memory_bytes: FloatArray  # [D]
    peaks: tuple[MemoryPeaks, ...]  # present if all of the model's data at once would exceed a device's memory
    sets_priority: bool  # whether ops run by the chain's ranks
    links_of_one: int  # index of the kind of links for a single inference, whose memory is checked
    links_of_many: int  # index of the kind of links for a period
    lists: Lists  # of the units if the chain's devices are pins of list schedules, else without units

    def propose(self, c: Chain, num: int) -> None:
        """Make ``num`` proposals; see ``Values``."""
        run_kernel(_propose, num * len(self.member), self, c, num)


def scheduled(problem: Problem, *, takes_order: bool) -> Scheduled:
    """Return the evaluation of plans on a simulated machine. Raises ValueError for a problem without costs."""
    costs, unit_of_op = problem.simulated
    semantics = problem.semantics
    is_steady = problem.objective.is_steady and semantics.execution is Execution.WORK_CONSERVING
    most_bytes = sum(float(column.sum()) for column in (costs.weight_bytes, costs.output_bytes, costs.edge_bytes))
    has_memory = bool((most_bytes > costs.memory_bytes).any())
    place = inverse_of(costs.topological_order)
    by_rank = takes_order or semantics.order is Order.PRIORITY
    mode, priority = mode_and_priority(semantics, place.astype(np.float64) if by_rank else None, costs.num_ops)
    machine = machine_for(costs, one_inference(semantics), mode, priority, keep=has_memory)
    if takes_order:  # ops of one unit go by their topological order
        machine.ops["key"][:-1] = np.arange(costs.num_ops) * ((1 << 32) + 1)
    by_unit = np.lexsort((place, unit_of_op))
    return Scheduled(
        machine=machine,
        first=np.searchsorted(unit_of_op[by_unit], np.arange(problem.num_units + 1)).astype(np.int64),
        member=place[by_unit],
        load_s=(np.zeros(problem.num_devices * (1 + problem.num_devices)),) if is_steady else (),
        memory_bytes=costs.memory_bytes * (1 + MEMORY_TOLERANCE),
        peaks=(memory_peaks_of(costs),) if has_memory else (),
        sets_priority=takes_order,
        links_of_one=int(machine.run["links"][0]),
        links_of_many=tuple(LinkSharing).index(semantics.links),
        lists=no_lists(problem.num_devices),
    )


@inlined
def put(g: Scheduled, device: IntArray, rank: FloatArray, u: int) -> None:
    """Set the device, and the rank if it counts, of the ops of unit u on the simulated machine."""
    for i in range(g.first[u], g.first[u + 1]):
        g.machine.ops[g.member[i]].device = device[u]
        if g.sets_priority:
            g.machine.ops[g.member[i]].value = rank[u]


@inlined
def _put_changed(g: Scheduled, c: Chain) -> None:
    for k in range(c.state[0].num_changed):
        put(g, c.device, c.rank, c.changed[k])


@inner
def _simulated(
    g: Scheduled, c: Chain, limit: float, load_s: tuple[FloatArray, ...], peaks: tuple[MemoryPeaks, ...]
) -> float:
    """Return the value of the plan on the machine, with its penalty for memory, and set the chain's excess.

    Args:
        limit: Value beyond which the simulation is cut off, and memory is not checked.
        load_s: ``g.load_s``.
        peaks: ``g.peaks``.
    """
    m = g.machine
    rewind(m)
    m.run[0].limit_s = limit
    c.state[0].excess = 0.0
    if len(load_s) == 0:
        value = run_loaded(m, m.way)
    else:
        m.run[0].links = g.links_of_many
        value = period_of_loaded(m, load_s[0])
        m.run[0].links = g.links_of_one
    if len(peaks) == 0 or value > limit or value == np.inf or surely_fits(g, peaks[0]):
        return value
    if len(load_s) == 1:
        rewind(m)
        m.run[0].limit_s = np.inf
        run_loaded(m, m.way)
    return value * (1.0 + penalty(g, c, peaks[0]))


@inner
def penalty(g: Scheduled, c: Chain, peaks: MemoryPeaks) -> float:
    """Return the penalty, as a share of the value, for memory that the recorded run exceeds; add to the excess."""
    find_peaks(g.machine, peaks)
    for d in range(len(g.memory_bytes)):
        if peaks.peak_bytes[d] > g.memory_bytes[d]:
            c.state[0].excess += (peaks.peak_bytes[d] - g.memory_bytes[d]) / max(g.memory_bytes[d], 1.0)
    share: float = PRICE_OF_MEMORY * c.state[0].excess
    return share


@inlined
def surely_fits(g: Scheduled, peaks: MemoryPeaks) -> bool:
    """Return whether everything that each device ever holds fits into its memory at once."""
    m = g.machine
    sum_bytes = peaks.resident_bytes
    sum_bytes[:] = 0.0
    for v in range(len(m.order)):
        home = m.ops[v].device
        sum_bytes[home] += peaks.weight_bytes[v] + peaks.output_bytes[v]
        for k in range(m.ops[v].first, m.ops[v + 1].first):
            away = m.ops[m.edges[k].consumer].device
            if away != home:
                sum_bytes[away] += m.edges[k].size_bytes
    fits = True
    for d in range(len(sum_bytes)):
        fits = fits and sum_bytes[d] <= g.memory_bytes[d]
    return fits


@bare
def _propose(g: Scheduled, c: Chain, num: int) -> None:
    makes_lists = len(g.lists.device) > 0
    for _ in range(max(num, 1)):
        limit = draw(c, num)
        if c.state[0].num_changed > 0:
            if makes_lists:
                schedule(g.lists, c.device, c.rank)
                for u in range(len(g.lists.device)):
                    put(g, g.lists.device, g.lists.rank, u)
            else:
                _put_changed(g, c)
            value = _simulated(g, c, limit * (1.0 + ROUNDING), g.load_s, g.peaks)
            if not (is_kept(c, value, limit) or makes_lists):
                _put_changed(g, c)
            end_proposal(c)


class UnderHetero(NamedTuple):
    """Evaluation of a chain's plans by HETERO's costs; a simulated machine finds peaks of memory."""

    costs: UnitCosts
    scheduled: tuple[Scheduled, ...]  # one item, or none if no device can lack memory

    def propose(self, c: Chain, num: int) -> None:
        """Make ``num`` proposals; see ``Values``."""
        run_kernel(_propose_under_hetero, num * len(c.device), self, c, num)


@bare
def _propose_under_hetero(g: UnderHetero, c: Chain, num: int) -> None:
    for _ in range(max(num, 1)):
        limit = draw(c, num)
        if c.state[0].num_changed > 0:
            most = limit * (1.0 + ROUNDING)
            value = placement_s(g.costs, c.device, most)
            if value <= most:
                value = _penalised(g.scheduled, c, value)
            is_kept(c, value, limit)
            end_proposal(c)


@inner
def _penalised(scheduled: tuple[Scheduled, ...], c: Chain, value: float) -> float:
    """Return the value of the chain's plan with its penalty for memory."""
    if len(scheduled) == 0:
        return value
    g = scheduled[0]
    peaks = g.peaks[0]
    c.state[0].excess = 0.0
    for u in range(len(c.device)):
        put(g, c.device, c.rank, u)
    rewind(g.machine)
    if surely_fits(g, peaks):
        return value
    g.machine.run[0].limit_s = np.inf
    run_sequential(g.machine)
    return value * (1.0 + penalty(g, c, peaks))


def values_of(problem: Problem, *, takes_order: bool, has_pins: bool = False) -> Scheduled | UnderHetero:
    """Return the evaluation of a chain's plans: by HETERO's costs if the problem has them, else by simulation.

    Args:
        takes_order: Whether ops run by the chain's ranks.
        has_pins: Whether the chain's devices are pins of a list schedule, which is simulated.

    Raises ValueError for a problem without costs.
    """
    on_machine = scheduled(problem, takes_order=takes_order)
    if has_pins and problem.costs is not None:
        return on_machine._replace(lists=lists_of(problem.costs))
    if not isinstance(problem.ops, HeteroCosts):
        return on_machine
    labels = problem.units.partition.labels
    costs = unit_costs(problem.ops, labels, problem.num_units, is_period=problem.objective.is_steady)
    return UnderHetero(costs, (on_machine,) if on_machine.peaks else ())
