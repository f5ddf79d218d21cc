"""Values of a chain under HETERO, followed move by move, compiled. Legend: U placement units, N ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from hsdag.ir.graph import IntArray
from hsdag.placers.local.chain import Chain
from hsdag.placers.local.values import Scheduled, keep, load, penalised, undo, value_of
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.hetero_machine import HeteroMachine, accept, hetero_machine, propose, reject
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.simulator.heaps import bare


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
    return value if value > limit else penalised(g.scheduled, c, value)


@bare
def _load(g: UnderHetero, c: Chain) -> float:
    """Every unit is proposed at once."""
    for u in range(len(c.device)):
        c.changed[u] = u
    value = propose(g.machine, c.changed, c.device, len(c.device), np.inf)
    accept(g.machine)
    return penalised(g.scheduled, c, value)


@overload(value_of, strict=False)
def _value_of(ground: Any, c: Any, limit: Any) -> Callable[..., Any] | None:  # noqa: ARG001
    return (lambda ground, c, limit: _value(ground, c, limit)) if ground.instance_class is UnderHetero else None


@overload(keep, strict=False)
def _keep(ground: Any, c: Any) -> Callable[..., Any] | None:  # noqa: ARG001
    return (lambda ground, c: accept(ground.machine)) if ground.instance_class is UnderHetero else None  # noqa: ARG005


@overload(undo, strict=False)
def _undo(ground: Any, c: Any) -> Callable[..., Any] | None:  # noqa: ARG001
    return (lambda ground, c: reject(ground.machine)) if ground.instance_class is UnderHetero else None  # noqa: ARG005


@overload(load, strict=False)
def _load_of(ground: Any, c: Any) -> Callable[..., Any] | None:  # noqa: ARG001
    return (lambda ground, c: _load(ground, c)) if ground.instance_class is UnderHetero else None
