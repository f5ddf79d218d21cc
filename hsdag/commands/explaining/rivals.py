"""The next best plan: what was measured beside a placement, or else what its costs say of its neighbours.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.commands.explaining.moves import Moves, heaviest_ops, last_of_units, pieces
from hsdag.commands.explaining.reading import Reading
from hsdag.evaluators.recording import Event
from hsdag.ir.graph import ComputationGraph, IntArray
from hsdag.reports.explanation import Difference, Rival
from hsdag.runtime.measuring.latency import Comparison
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem


@dataclass(frozen=True, eq=False)
class Measured:
    """What a search measured: plans in the search, and by name in the final comparison, in common rounds.

    ``finalists`` are plans of the comparison, and ``answer`` is the candidate that became the placement.
    ``disallowed`` are candidates that could be no answer.
    """

    problem: Problem
    events: Sequence[Event]
    comparison: Comparison
    finalists: Mapping[str, Plan]
    answer: str | None
    disallowed: Collection[str] = ()

    def placements(self) -> dict[str, IntArray]:
        """The placement [N] of candidates of the comparison: finalists, and devices that are placed on."""
        problem, samples = self.problem, self.comparison.samples
        num_ops = len(problem.units.partition.labels)
        found = {name: np.full(num_ops, d) for d, name in enumerate(problem.devices) if name in samples}
        plans = {name: plan for name, plan in self.finalists.items() if name in samples}
        return found | {name: problem.expand(plan.placement) for name, plan in plans.items()}

    def is_rival(self, name: str, placement: IntArray) -> bool:
        """Whether a candidate with this placement [N] could have been the answer: it keeps all limits."""
        supported, labels = self.problem.supported, self.problem.units.partition.labels
        return name not in self.disallowed and bool(supported[labels, placement].all())

    def compared(self, name: str) -> tuple[float, tuple[float, float] | None]:
        """How many times as long as the answer a candidate takes, with the 95% interval where rounds are enough."""
        assert self.answer is not None
        ratio = self.comparison.ratio(self.answer, name)
        return ratio.value, (ratio.low, ratio.high) if ratio.is_known else None


def next_best(
    measured: Measured | None, placement: IntArray | None, moves: Moves | None, reading: Reading | None, *, split: bool
) -> Rival | None:
    """The best other plan, of those over several devices where ``split`` says so.

    Plans of the final comparison come first, then those that were measured in the search alone, then the best single
    move by the costs; None where there is none of these.
    """
    found = _compared(measured, placement, reading, split=split) if measured is not None else None
    if found is None and measured is not None:
        found = _searched(measured, placement, reading, split=split)
    if found is None and moves is not None and reading is not None:
        found = _neighbour(moves, reading, split=split)
    return found


def _compared(measured: Measured, placement: IntArray | None, reading: Reading | None, *, split: bool) -> Rival | None:
    """The fastest other plan of the final comparison."""
    if measured.answer is None or measured.answer not in measured.comparison.samples:
        return None
    known = measured.placements()
    own = known.get(measured.answer) if placement is None else placement
    names = [name for name, each in known.items() if name != measured.answer and measured.is_rival(name, each)]
    names = [name for name in names if own is None or not _same(known[name], own)]
    names = [name for name in names if not split or len(np.unique(known[name])) > 1]
    if not names:
        return None
    name = min(names, key=measured.comparison.median_s)
    ratio, ci95 = measured.compared(name)
    differs, num_ops = differences(measured.problem, own, known[name], reading)
    return Rival(name, True, ratio, ci95, measured.comparison.median_s(name), differs, num_ops)


def _searched(measured: Measured, placement: IntArray | None, reading: Reading | None, *, split: bool) -> Rival | None:
    """The fastest other plan that the search measured, if it measured this one too."""
    problem, scored = measured.problem, [e for e in measured.events if e.score.failure is None]
    own = [
        e.score.value for e in scored if placement is not None and _same(problem.expand(e.plan.placement), placement)
    ]
    others = [e for e in scored if placement is None or not _same(problem.expand(e.plan.placement), placement)]
    others = [e for e in others if e.plan.is_split or not split]
    if not own or not others:
        return None
    best = min(others, key=lambda event: event.score.value)
    other = problem.expand(best.plan.placement)
    differs, num_ops = differences(problem, placement, other, reading)
    name = f"the plan measured after {best.elapsed_s:.1f} s"
    return Rival(name, True, best.score.value / min(own), None, best.score.value, differs, num_ops)


def _neighbour(moves: Moves, reading: Reading, *, split: bool) -> Rival | None:
    """The best single move, by the costs alone."""
    gains = moves.gains()
    if not gains or (split and len(reading.devices) < 2):
        return None
    best = gains[-1]
    there = Difference(best.op, best.op_type, best.device, best.other)
    name = f"the one with {best.op} on {best.other}"
    return Rival(name, False, best.moved / reading.value, None, best.moved, (there,), len(best.ops))


def differences(
    problem: Problem, placement: IntArray | None, other: IntArray, reading: Reading | None
) -> tuple[tuple[Difference, ...], int]:
    """The units that another placement [N] has elsewhere, the longest first, and how many ops these are."""
    if placement is None:
        return (), 0
    graph: ComputationGraph = problem.units.fine
    moved = placement != other
    unit = pieces(problem, placement)
    if reading is not None and _same(reading.placement, placement):
        heaviest, costs = heaviest_ops(reading, unit), reading.costs.costs
        weight = np.nan_to_num(costs.time_s).max(axis=1)
    else:
        weight = graph.flops
        heaviest = last_of_units(np.argsort(weight, kind="stable"), unit)
    units = np.unique(unit[moved])
    ops = sorted((int(heaviest[u]) for u in units.tolist()), key=lambda v: -weight[v])
    names = problem.devices
    found = [
        Difference(graph.op_names[v], graph.op_types[v], names[placement[v]], names[other[v]])
        for v in ops
        if placement[v] != other[v]
    ]
    return tuple(found), int(moved.sum())


def _same(one: IntArray, other: IntArray) -> bool:
    return bool(np.array_equal(one, other))
