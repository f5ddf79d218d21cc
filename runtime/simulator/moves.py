"""Makespans of the neighbours of a placement: one op moved, simulated from the first event that changes.

Legend: N ops, M moves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.semantics import Links, Semantics
from hsdag.runtime.simulator.heaps import bare, inlined
from hsdag.runtime.simulator.independent import begin, finish, play_until
from hsdag.runtime.simulator.machine import Machine, load_placement, machine_for
from hsdag.runtime.simulator.order import BY_PATH, SEQUENTIAL, mode_and_ranks
from hsdag.runtime.simulator.simulation import (
    all_supported,
    check_devices,
    checked_placements,
    in_parts,
    priorities,
    simulate,
    simulate_makespans,
    simulated,
)


def simulate_moves(
    problem: ScheduleProblem,
    placement: ArrayLike,
    ops: ArrayLike,
    devices: ArrayLike,
    semantics: Semantics | None = None,
    priority: ArrayLike | None = None,
    num_threads: int | None = None,
) -> FloatArray:
    """[M] simulated makespans in seconds of ``placement`` [N] with ``ops[i]`` on ``devices[i]`` instead.

    Equal to those that ``simulate_makespans`` gives. Where links are independent and the order does not look at
    the placement, what happens before the first input of the moved op is computed is simulated once for all moves.
    Raises as ``simulate_makespans`` does, and IndexError for an op that is not there.
    """
    semantics = simulated(semantics)
    base = checked_placements(problem, np.asarray(placement)[None])
    op, to = np.asarray(ops, dtype=np.int64), np.asarray(devices, dtype=np.int64)
    check_devices(problem, to)
    mode, ranks = mode_and_ranks(semantics, priorities(priority), problem.num_ops)
    whole = mode in (BY_PATH, SEQUENTIAL) or semantics.links is not Links.INDEPENDENT
    if whole or not all_supported(problem, base)[0]:
        table = np.repeat(base, len(op), axis=0)
        table[np.arange(len(op)), op] = to
        return simulate_makespans(problem, table, semantics, priority, num_threads)
    change_s = _first_changes_s(problem, simulate(problem, base[0], semantics, priority).start_s)
    makespans_s = np.full(len(op), np.inf)
    rows = np.flatnonzero(problem.supported[op, to])
    rows = rows[np.argsort(change_s[op[rows]], kind="stable")]
    place = inverse_of(problem.topological_order)
    found_s = np.empty(len(rows))

    def run_part(part: slice) -> None:
        machine, fork = (machine_for(problem, semantics, mode, ranks) for _ in range(2))
        chosen = op[rows[part]]
        _run_moves(machine, fork, base[0], place[chosen], to[rows[part]], change_s[chosen], found_s[part])

    in_parts(len(rows), num_threads, run_part)
    makespans_s[rows] = found_s
    return makespans_s


def _first_changes_s(problem: ScheduleProblem, start_s: FloatArray) -> FloatArray:
    """[N] when the first input of each op starts; before time begins for ops without inputs."""
    first_s = np.full(problem.num_ops, np.inf)
    np.minimum.at(first_s, problem.edge_dst, start_s[problem.edge_src])
    first_s[np.isinf(first_s)] = -1.0
    return first_s


@bare
def _run_moves(
    m: Machine,
    fork: Machine,
    placement: IntArray,
    places: IntArray,
    devices: IntArray,
    change_s: FloatArray,
    makespans_s: FloatArray,
) -> None:
    """Fill ``makespans_s`` [M] of moves in order of ``change_s`` [M], when each changes the run."""
    load_placement(m, placement)
    begin(m)
    for i in range(len(places)):
        if change_s[i] < 0.0:
            load_placement(fork, placement)
            fork.ops[places[i]].device = devices[i]
            begin(fork)
        else:
            play_until(m, change_s[i])
            _copy(m, fork)
            fork.ops[places[i]].device = devices[i]
        makespans_s[i] = finish(fork)


@inlined
def _copy(m: Machine, fork: Machine) -> None:
    """Bring ``fork`` to where ``m`` is."""
    fork.run[0].now_s = m.run[0].now_s
    fork.run[0].num_done = m.run[0].num_done
    for v in range(len(m.order)):
        fork.ops[v] = m.ops[v]
    for d in range(len(m.devices)):
        fork.devices[d] = m.devices[d]
        fork.devices[d].stamp = -1
        for i in range(m.devices[d].base, m.devices[d].base + m.devices[d].queued):
            fork.queue[i] = m.queue[i]
        for i in range(m.devices[d].base, m.devices[d].base + m.devices[d].arriving):
            fork.arriving[i] = m.arriving[i]
