"""What is compiled before a policy answers; torch, which takes a second or two to load, is not needed for it."""

from __future__ import annotations

import numpy as np

from hsdag.learning.decoding import Rules, decode
from hsdag.learning.decoding_kernel import FEATURES, Scores
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.tables import tables_of


def compile_decoding() -> None:
    """Have the loop of sequential decoding compiled, where the machine has not yet."""
    n, d, f, h, k = 2, 2, len(FEATURES), 1, 1
    shapes = ((n,), (n, k), (n, k), (f, h), (h,), (h, k), (k,), (f,), (n, d))
    scores = Scores(*(np.zeros(shape, np.float32) for shape in shapes))
    decode(tables_of(ScheduleProblem.from_arrays([[1.0] * d] * n, [(0, 1)])), scores, Rules(), np.zeros(1, np.uint64))
