"""One round over few candidates, each of which may be measured. Legend: U placement units."""

from __future__ import annotations

from collections.abc import Iterable

from hsdag.ir.graph import IntArray
from hsdag.placers.incumbent import GaveUp, Incumbent
from hsdag.runtime.problems.plan import Plan


def evaluate_each(candidates: Iterable[IntArray], incumbent: Incumbent, most: int, otherwise: str) -> None:
    """Evaluate the first ``most`` different legal candidates [U], one after the other.

    Raises GaveUp with ``otherwise`` where all failed, SearchStopped when the evaluator does.
    """
    seen: set[Plan] = set()
    for plan in map(Plan, candidates):
        if plan in seen or not incumbent.problem.is_legal(plan.placement):
            continue
        seen.add(plan)
        incumbent.evaluate([plan])
        if len(seen) == most:
            break
    if incumbent.best is None:
        raise GaveUp(otherwise)
