"""Bounds of deep graphs: what lies between two ops that follow each other takes a time of its own, and these add up.

Legend: N ops, M ops of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, Csr, IntArray, inverse_of
from hsdag.methods.exact.formulation import Formulation, induced
from hsdag.methods.repeated.blocks import Blocks, barriers_of, part_of
from hsdag.runtime.problem.bounds.makespan import PAIRS_EFFORT, makespan_bound
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

ROUNDING = 1e-12
"""Share by which the sum is lowered: many addends round."""

EFFORT = 1e5
"""Ops times edges times kinds of devices up to which every two ops of unlike parts are bounded: these are many."""


def chained_bound(problem: ScheduleProblem, blocks: Blocks | None, check: Callable[[], object]) -> Bound:
    """Seconds of a work-conserving makespan at least, from a chain of counterparts, each of which reads the one before;
    without blocks, of ops that all others lie before or behind.

    From the end of one to the end of the next one all that lies on paths between them has to run, with the first as an
    input that costs nothing: any bound of that part holds, parts have no op in common, and equal parts have equal
    bounds. ``check`` is called before each part.
    """
    known: dict[bytes, float] = {}
    chains: Iterable[list[int]] = [barriers_of(problem)[1].tolist()] if blocks is None else _chains(problem, blocks)
    effort = EFFORT if blocks is None else PAIRS_EFFORT

    def least_s(part: ScheduleProblem) -> float:
        key = b"".join(table.tobytes() for table in (part.time_s, part.edge_src, part.edge_dst, part.edge_bytes))
        if key not in known:
            check()
            known[key] = makespan_bound(part, effort).value
        return known[key]

    totals_s = [sum(map(least_s, _parts(problem, cuts))) for cuts in chains]
    return Bound(max(totals_s) * (1 - ROUNDING), "parts one behind the other")


def _chains(problem: ScheduleProblem, blocks: Blocks) -> Iterator[list[int]]:
    """The last op of each block; and for each kind an op of each of its blocks: of the position between whose ops most
    work lies."""
    by_place = problem.topological_order[np.argsort(blocks.block[problem.topological_order], kind="stable")]
    yield by_place[np.flatnonzero(np.diff(blocks.block[by_place], append=-1))].tolist()
    for kind in range(int(blocks.kind.max()) + 1):
        if len(members := np.flatnonzero(blocks.kind == kind)) < 2:
            continue
        first, last = members[(len(members) - 1) // 2 :][:2]
        ops = np.flatnonzero((blocks.block >= first) & (blocks.block <= last))
        reach = Formulation(induced(problem, ops)).reach
        work_s = np.nanmin(problem.time_s[ops], axis=1)
        of_position = {int(p): i for i, p in enumerate(blocks.position[ops]) if p >= 0 and blocks.block[ops[i]] == last}
        covered_s = {
            p: float(work_s[reach[i] & reach[:, of_position[p]]].sum())
            for i, p in enumerate(blocks.position[ops].tolist())
            if p in of_position and blocks.block[ops[i]] == first
        }
        chosen = np.flatnonzero(blocks.position == max(covered_s, key=covered_s.__getitem__))
        yield [int(v) for v in chosen[np.argsort(blocks.block[chosen])]]


def _parts(problem: ScheduleProblem, cuts: list[int]) -> Iterator[ScheduleProblem]:
    """What lies before the first op, between each two, and behind the last; an op that does not read the one before is
    left out."""
    every = np.ones(problem.num_ops, dtype=np.bool_)
    src, dst = problem.edge_src, problem.edge_dst
    place = inverse_of(problem.topological_order)
    inputs, readers = Csr.build(problem.num_ops, dst, src), Csr.build(problem.num_ops, src, dst)
    last = np.zeros(0, dtype=np.int64)
    for v in cuts:
        behind = _reached(readers, last, place <= place[v]) if len(last) else every
        if behind[v]:
            between = _reached(inputs, np.array([v]), behind)
            between[last] = False
            yield part_of(problem, last, np.flatnonzero(between))
            last = np.array([v])
    behind = _reached(readers, last, every)
    behind[last] = False
    if behind.any():
        yield part_of(problem, last, np.flatnonzero(behind))


def _reached(neighbours: Csr, first: IntArray, within: BoolArray) -> BoolArray:
    """[N] what is reached from ops without leaving ``within`` [N]; themselves too."""
    found = np.zeros(len(within), dtype=np.bool_)
    waiting = first.tolist()
    found[first] = True
    while waiting:
        for u in neighbours.of(waiting.pop()).tolist():
            if within[u] and not found[u]:
                found[u] = True
                waiting.append(u)
    return found
