"""Values of a chain under HETERO, followed move by move, compiled. Legend: U placement units, N ops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.compiled import bare
from hsdag.ir.graph import IntArray
from hsdag.placers.local.chain import Chain, settle
from hsdag.placers.local.loop import ROUNDING, draw, is_kept, propose, value_of
from hsdag.placers.local.values import Scheduled, put, surely_fits, with_penalty
from hsdag.runtime.costs import hetero_machine
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.hetero_machine import HeteroMachine
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.simulator.machine import rewind
from hsdag.runtime.simulator.sequential import run_sequential


class UnderHetero(NamedTuple):
    """What placements take under HETERO; the simulated machine tells whether they fit into memory."""

    machine: HeteroMachine
    scheduled: Scheduled
    to: IntArray  # [U] where the units of a proposal go


def under_hetero(problem: Problem, costs: HeteroCosts, scheduled: Scheduled) -> UnderHetero:
    """Values of placements of a model's units."""
    first = problem.supported.argmax(axis=1)
    machine = hetero_machine.hetero_machine(costs, problem.units.partition.labels, first, problem.objective.is_steady)
    return UnderHetero(machine, scheduled, np.zeros(problem.num_units, dtype=np.int64))


@bare
def _penalised(g: Scheduled, c: Chain, value: float) -> float:
    """The value of a chain's plan, with the penalty of what the plan holds."""
    c.state[0].excess = 0.0
    if not g.setting[0].has_memory:
        return value
    for u in range(len(c.device)):
        put(g, c.device, c.rank, u)
    rewind(g.machine)
    if surely_fits(g):
        return value
    g.machine.run[0].limit_s = np.inf
    run_sequential(g.machine)
    return with_penalty(g, c, value)


@bare
def _propose(g: UnderHetero, c: Chain, num: int) -> None:
    for _ in range(num):
        limit = draw(c)
        count = c.state[0].num_changed
        if count > 0:
            for k in range(count):
                g.to[k] = c.device[c.changed[k]]
            most = limit * (1.0 + ROUNDING)
            value = hetero_machine.propose(g.machine, c.changed, g.to, count, most)
            if is_kept(c, value if value > most else _penalised(g.scheduled, c, value), limit):
                hetero_machine.accept(g.machine)
            else:
                hetero_machine.reject(g.machine)
            settle(c)


def _value(g: UnderHetero, c: Chain) -> float:
    """The value of a chain's plan, as it is: every unit is proposed at once."""
    every = np.arange(len(c.device))
    value = float(hetero_machine.propose(g.machine, every, c.device, len(every), np.inf))
    hetero_machine.accept(g.machine)
    return float(_penalised(g.scheduled, c, value))


propose.register(UnderHetero, _propose)
value_of.register(UnderHetero, _value)
