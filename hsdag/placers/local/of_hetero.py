"""Values of a chain under HETERO, followed move by move, compiled. Legend: U placement units, N ops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.graph import IntArray
from hsdag.placers.local.chain import Chain
from hsdag.placers.local.values import Scheduled, implement, keep, put, surely_fits, undo, value_of, with_penalty
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.hetero_machine import HeteroMachine, accept, hetero_machine, propose, reject
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.simulator.heaps import bare
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
    machine = hetero_machine(costs, problem.units.partition.labels, first, problem.objective.is_steady)
    return UnderHetero(machine, scheduled, np.zeros(problem.num_units, dtype=np.int64))


@bare
def _value(g: UnderHetero, c: Chain, limit: float) -> float:
    for k in range(c.state[0].num_changed):
        g.to[k] = c.device[c.changed[k]]
    value = propose(g.machine, c.changed, g.to, c.state[0].num_changed, limit)
    return value if value > limit else _penalised(g.scheduled, c, value)


def load_under_hetero(g: UnderHetero, c: Chain) -> float:
    """The value of a chain's plan, as it is: every unit is proposed at once."""
    every = np.arange(len(c.device))
    value = float(propose(g.machine, every, c.device, len(every), np.inf))
    accept(g.machine)
    return float(_penalised(g.scheduled, c, value))


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


implement(value_of, UnderHetero, lambda ground, c, limit: _value(ground, c, limit))
implement(keep, UnderHetero, lambda ground, c: accept(ground.machine))  # noqa: ARG005
implement(undo, UnderHetero, lambda ground, c: reject(ground.machine))  # noqa: ARG005
