"""Values of a chain's proposals, compiled: the simulator behind a local search.

Legend: U placement units, D devices, N ops.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.evaluators.memory import MEMORY_TOLERANCE, one_inference
from hsdag.ir.compiled import bare, inlined, inner
from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.placers.local.chain import Chain, settle
from hsdag.placers.local.loop import ROUNDING, draw, is_kept, propose, value_of
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.semantics import Execution, Links, Order
from hsdag.runtime.simulator.heaps import Records
from hsdag.runtime.simulator.machine import Machine, machine_for, rewind
from hsdag.runtime.simulator.memory import Room, find_peaks, room_for
from hsdag.runtime.simulator.simulation import mode_and_ranks, run_loaded
from hsdag.runtime.simulator.throughput import period_of_loaded

PRICE_OF_MEMORY = 10.0

SETTING = np.dtype(
    [
        ("is_steady", "i8"),  # whether the period is the value, not the makespan
        ("sets_ranks", "i8"),  # whether ops run by the chain's ranks
        ("has_memory", "i8"),  # whether any device has a limit
        ("links_of_one", "i8"),  # the links of one inference, whose memory counts
        ("links_of_many", "i8"),  # the links of a period
        ("price", "f8"),  # of an excess as large as the memory, in shares of the value
    ],
    align=True,
)


class Scheduled(NamedTuple):
    """A simulated machine, and what a chain's units are on it."""

    machine: Machine
    first: IntArray  # [U + 1] the ops of unit u are member[first[u]:first[u + 1]], as places in the topological order
    member: IntArray  # [N]
    load_s: FloatArray  # [D + D * D] room for the loads of a period
    memory_bytes: FloatArray  # [D]
    room: Room
    setting: Records  # [1] SETTING


def scheduled(problem: Problem, costs: ScheduleProblem, unit_of_op: IntArray, *, takes_order: bool) -> Scheduled:
    """Simulated values of plans under ``costs`` of ops, ``unit_of_op`` [N] being their units."""
    semantics, d = problem.semantics, problem.num_devices
    is_steady = problem.objective.is_steady and semantics.execution is Execution.WORK_CONSERVING
    has_memory, place = bool(np.isfinite(costs.memory_bytes).any()), inverse_of(costs.topological_order)
    by_rank = takes_order or semantics.order is Order.PRIORITY
    mode, ranks = mode_and_ranks(semantics, place.astype(np.float64) if by_rank else None, costs.num_ops)
    machine = machine_for(costs, one_inference(semantics), mode, ranks, keep=has_memory)
    if takes_order:  # ops of one unit go by their topological order
        machine.ops["key"][:-1] = np.arange(costs.num_ops) * ((1 << 32) + 1)
    setting = np.zeros(1, SETTING)
    setting["is_steady"], setting["sets_ranks"], setting["has_memory"] = is_steady, takes_order, has_memory
    setting["links_of_one"], setting["links_of_many"] = machine.run["links"], tuple(Links).index(semantics.links)
    setting["price"] = PRICE_OF_MEMORY
    by_unit = np.lexsort((place, unit_of_op))
    return Scheduled(
        machine=machine,
        first=np.searchsorted(unit_of_op[by_unit], np.arange(problem.num_units + 1)).astype(np.int64),
        member=place[by_unit],
        load_s=np.zeros(d * (1 + d)),
        memory_bytes=costs.memory_bytes * (1 + MEMORY_TOLERANCE),
        room=room_for(costs),
        setting=setting,
    )


@inlined
def put(g: Scheduled, device: IntArray, rank: FloatArray, u: int) -> None:
    for i in range(g.first[u], g.first[u + 1]):
        g.machine.ops[g.member[i]].device = device[u]
        if g.setting[0].sets_ranks:
            g.machine.ops[g.member[i]].value = rank[u]


@inlined
def _put_changed(g: Scheduled, c: Chain) -> None:
    for k in range(c.state[0].num_changed):
        put(g, c.device, c.rank, c.changed[k])


@bare
def simulated(g: Scheduled, c: Chain, limit: float) -> float:
    """The value of what is on the machine, with the penalty."""
    m, setting = g.machine, g.setting[0]
    rewind(m)
    m.run[0].limit_s = limit
    c.state[0].excess = 0.0
    value = 0.0
    if setting.is_steady:
        m.run[0].links = setting.links_of_many
        value = period_of_loaded(m, g.load_s)
        m.run[0].links = setting.links_of_one
        if value > limit or not setting.has_memory or surely_fits(g):
            return value
        rewind(m)
        m.run[0].limit_s = np.inf
        run_loaded(m)
    else:
        value = run_loaded(m)
        if value == np.inf or not setting.has_memory or surely_fits(g):
            return value
    return with_penalty(g, c, value)


@inner
def with_penalty(g: Scheduled, c: Chain, value: float) -> float:
    """The value, and more where the run that the machine has recorded exceeds a memory."""
    find_peaks(g.machine, g.room)
    for d in range(len(g.memory_bytes)):
        if g.room.peak_bytes[d] > g.memory_bytes[d]:
            c.state[0].excess += g.room.peak_bytes[d] / max(g.memory_bytes[d], 1.0) - 1.0
    penalty: float = g.setting[0].price * c.state[0].excess
    return value * (1.0 + penalty)


@inlined
def surely_fits(g: Scheduled) -> bool:
    """Whether all that a device ever holds fits into its memory at once."""
    m, held = g.machine, g.room.held_bytes
    for d in range(len(held)):
        held[d] = 0.0
    for v in range(len(m.order)):
        home = m.ops[v].device
        held[home] += g.room.weight_bytes[v] + g.room.output_bytes[v]
        for k in range(m.ops[v].first, m.ops[v + 1].first):
            away = m.ops[m.edges[k].consumer].device
            if away != home:
                held[away] += m.edges[k].size_bytes
    fits = True
    for d in range(len(held)):
        fits = fits and held[d] <= g.memory_bytes[d]
    return fits


@bare
def _propose(g: Scheduled, c: Chain, num: int) -> None:
    for _ in range(num):
        limit = draw(c)
        if c.state[0].num_changed > 0:
            _put_changed(g, c)
            if not is_kept(c, simulated(g, c, limit * (1.0 + ROUNDING)), limit):
                _put_changed(g, c)
            settle(c)


def value_of_plan(g: Scheduled, c: Chain, device: IntArray, rank: FloatArray) -> float:
    """The value of a placement [U] with ranks [U]; its excess of memory goes into the state of ``c``."""
    unit = np.repeat(np.arange(len(device)), np.diff(g.first))
    g.machine.ops["device"][g.member] = device[unit]
    if g.setting["sets_ranks"][0]:
        g.machine.ops["value"][g.member] = rank[unit]
    return float(simulated(g, c, np.inf))


propose.register(Scheduled, _propose)
value_of.register(Scheduled, lambda ground, c: value_of_plan(ground, c, c.device, c.rank))
