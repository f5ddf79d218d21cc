"""One round over few candidates, each of which may be measured. Legend: U placement units."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.ir.graph import IntArray
from hsdag.runtime.problems.problem import Problem


def best_of(candidates: Iterable[IntArray], problem: Problem, evaluator: Evaluator, most: int) -> IntArray | None:
    """The best of the first ``most`` different legal candidates [U], one evaluated after the other.

    None where all failed. Raises SearchStopped when the evaluator does; what was evaluated by then is kept there.
    """
    best, best_s = None, np.inf
    seen: set[bytes] = set()
    for placement in candidates:
        key = np.ascontiguousarray(placement, dtype=np.int64).tobytes()
        if key in seen or not problem.is_legal(placement):
            continue
        seen.add(key)
        cost_s = evaluator.evaluate([placement])[0].latency_s
        if cost_s is not None and cost_s < best_s:
            best, best_s = placement, cost_s
        if len(seen) == most:
            break
    return best
