"""The order of the queues: the mode of a simulation, and the ranks of ops that do not depend on time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hsdag.ir.errors import OptionError
from hsdag.ir.graph import FloatArray
from hsdag.runtime.problems.semantics import Execution, Order, Semantics

SEQUENTIAL = -1
"""The mode of a simulation that needs no queue."""
BY_RANK, BY_ARRIVAL, BY_LATEST_ARRIVAL, BY_PATH = 0, 1, 2, 3
"""What queues are ordered by: given ranks; arrival of the last input, early or late ones first; the way to the end."""


def mode_and_ranks(semantics: Semantics, priority: ArrayLike | None, num_ops: int) -> tuple[int, FloatArray | None]:
    """The mode of a simulation, and the ranks [N] of the ops, smallest first, where the mode needs any.

    Raises OptionError for PRIORITY without priorities, or they are not [N] or not numbers.
    """
    given = None if priority is None else np.asarray(priority, dtype=np.float64)
    if given is not None and (given.shape != (num_ops,) or np.isnan(given).any()):
        raise OptionError(f"priorities must be {num_ops} numbers, one for each op")
    order = semantics.order or (Order.FIFO if priority is None else Order.PRIORITY)
    if order is Order.PRIORITY and priority is None:
        raise OptionError("order 'priority' needs priorities; the placement has none")
    if semantics.execution is Execution.SEQUENTIAL:
        return SEQUENTIAL, None
    if order is Order.PRIORITY:
        return BY_RANK, given
    if order is Order.RANDOM:
        return BY_RANK, np.random.default_rng(semantics.seed).permutation(num_ops).astype(np.float64)
    modes = {Order.FIFO: BY_ARRIVAL, Order.DEPTH_FIRST: BY_LATEST_ARRIVAL, Order.CRITICAL_PATH: BY_PATH}
    return modes[order], None
