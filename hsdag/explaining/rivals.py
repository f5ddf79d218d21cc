"""The next best plan: what was measured beside a placement, or else what its costs say of its neighbours.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.explaining.costed import CostedPlacement
from hsdag.explaining.explanation import Difference, Rival
from hsdag.explaining.moves import Moves, heaviest_ops, last_of_units, pieces
from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray
from hsdag.ir.placement.placement import Placement
from hsdag.placing.result import PlaceResult
from hsdag.runtime.problem.problem import Problem
from hsdag.scoring.recording import Event
from hsdag.search.run_folder import RESULT


@dataclass(frozen=True, eq=False)
class Rivals:
    """The plans beside a ``chosen`` one, whose devices are ``placement`` [N], None where some are not placed on.

    ``events`` and ``result`` are what its search measured, and ``moves`` what the costs say.
    """

    problem: Problem
    chosen: Placement
    placement: IntArray | None
    events: Sequence[Event]
    result: PlaceResult | None
    moves: Moves | None

    @property
    def costed(self) -> CostedPlacement | None:
        """What the costs say of the chosen one."""
        return None if self.moves is None else self.moves.costed

    def best(self, *, split: bool) -> Rival | None:
        """The best other plan, of those over several devices where ``split`` says so.

        Plans of the final comparison come first, then those that were measured in the search alone, then the best
        single move by the costs; None where there is none of these.
        """
        found = None
        if self.result is not None and self.chosen.affinity == self.result.placement.affinity:
            found = self._compared(self.result, split=split)
        found = found or self._searched(split=split)
        return found if found is not None or self.moves is None else _neighbour(self.moves, split=split)

    def _compared(self, result: PlaceResult, *, split: bool) -> Rival | None:
        """The fastest other plan of the final comparison that keeps pins and was not turned down."""
        problem, comparison, answer = self.problem, result.comparison, result.answer.name
        if answer not in comparison.samples:
            return None
        labels, sizes = problem.units.partition.labels, (problem.num_units, problem.num_devices)
        known = {name: np.full(len(labels), d) for d, name in enumerate(problem.devices)}
        known |= {name: problem.expand(each.plan(*sizes, RESULT).placement) for name, each in result.finalists.items()}
        own = known.get(answer) if self.placement is None else self.placement
        names = [
            name
            for name, other in known.items()
            if name in comparison.samples
            and name != answer
            and name not in result.turned_down
            and problem.supported[labels, other].all()
            and (own is None or not _same(other, own))
            and (not split or len(np.unique(other)) > 1)
        ]
        if not names:
            return None
        name = min(names, key=comparison.median_s)
        ratio = comparison.ratio(answer, name)
        ci95 = (ratio.low, ratio.high) if ratio.is_known else None
        differs, num_ops = differences(problem, own, known[name], self.costed)
        return Rival(name, True, ratio.value, ci95, comparison.median_s(name), differs, num_ops)

    def _searched(self, *, split: bool) -> Rival | None:
        """The fastest other plan that the search measured, if it measured this one too."""
        problem, scored = self.problem, [e for e in self.events if e.score.failure is None]
        placement = self.placement
        is_own = [placement is not None and _same(problem.expand(e.plan.placement), placement) for e in scored]
        own = [e.score.value for e, same in zip(scored, is_own, strict=True) if same]
        others = [e for e, same in zip(scored, is_own, strict=True) if not same and (e.plan.is_split or not split)]
        if not own or not others:
            return None
        best = min(others, key=lambda event: event.score.value)
        differs, num_ops = differences(problem, placement, problem.expand(best.plan.placement), self.costed)
        name = f"the plan measured after {best.elapsed_s:.1f} s"
        return Rival(name, True, best.score.value / min(own), None, best.score.value, differs, num_ops)


def _neighbour(moves: Moves, *, split: bool) -> Rival | None:
    """The best single move, by the costs alone."""
    gains, costed = moves.gains(), moves.costed
    if not gains or (split and len(costed.devices) < 2):
        return None
    best = gains[-1]
    there = Difference(best.op, best.op_type, best.device, best.other)
    name = f"the one with {best.op} on {best.other}"
    return Rival(name, False, best.moved / costed.value, None, best.moved, (there,), len(best.ops))


def differences(
    problem: Problem, placement: IntArray | None, other: IntArray, costed: CostedPlacement | None
) -> tuple[tuple[Difference, ...], int]:
    """The units that another placement [N] has elsewhere, the longest first, and how many ops these are."""
    if placement is None:
        return (), 0
    graph: ComputationGraph = problem.units.fine
    moved = placement != other
    unit = pieces(problem, placement)
    if costed is not None and _same(costed.placement, placement):
        heaviest, costs = heaviest_ops(costed, unit), costed.costs.costs
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
