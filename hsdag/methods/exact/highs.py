"""Linear programs solved by SciPy's HiGHS, in a process of its own, which can be ended; run as a module."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hsdag.ir.errors import SearchError
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray
from hsdag.ir.host import die_with_parent

POLL_S = 0.05
GRACE_S = 2.0
"""What HiGHS may take beyond its limit before it is ended."""
PRECISION = 1e-9
"""Of gaps and of rows; HiGHS's own defaults are too coarse for rows with a big M."""


@dataclass(frozen=True, eq=False)
class HighsAnswer:
    """The best solution, if any, and the proven bound, infinite where there is no solution."""

    bound: float
    values: FloatArray | None = None


def solve_highs(
    cost: FloatArray,
    is_whole: BoolArray,
    bounds: tuple[FloatArray, FloatArray],
    rows: tuple[Any, FloatArray, FloatArray],
    *,
    seconds: float,
    num_workers: int,
    seed: int,
    on_wait: Callable[[], None],
) -> HighsAnswer:
    """Minimise ``cost`` x within ``bounds`` over ``rows``, a sparse matrix with its lower and upper limits.

    ``on_wait`` is called every so often; what it raises ends HiGHS. Raises SearchError when HiGHS dies.
    """
    options = {
        "time_limit": min(seconds, 1e9), "random_seed": seed % 2**31, "threads": num_workers,
        "mip_rel_gap": PRECISION, "mip_abs_gap": PRECISION,
        "mip_feasibility_tolerance": PRECISION, "primal_feasibility_tolerance": PRECISION,
    }  # fmt: skip
    request: bytes | None = pickle.dumps((cost, is_whole, bounds, rows, options))
    deadline = time.monotonic() + seconds + GRACE_S
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            while True:
                try:
                    written = process.communicate(request, timeout=POLL_S)[0]
                    break
                except subprocess.TimeoutExpired:
                    request = None  # the process is being told
                    on_wait()
                    if time.monotonic() > deadline:
                        return HighsAnswer(-np.inf)
        finally:
            process.kill()
    if not written:
        raise SearchError("HiGHS ended without an answer; use --method cpsat, which solves the same problem")
    is_infeasible, values, bound = pickle.loads(written)
    if is_infeasible:
        return HighsAnswer(np.inf)
    return HighsAnswer(-np.inf if bound is None else float(bound), values)


def main() -> None:
    """Solve the program that comes in through stdin."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    die_with_parent()
    cost, is_whole, bounds, rows, options = pickle.load(sys.stdin.buffer)
    with warnings.catch_warnings():  # SciPy warns of options that it hands on to HiGHS as they are
        warnings.simplefilter("ignore")
        found = milp(
            cost, integrality=is_whole, bounds=Bounds(*bounds), constraints=LinearConstraint(*rows), options=options
        )
    is_infeasible = found.status == 2
    sys.stdout.buffer.write(pickle.dumps((is_infeasible, found.x, found.mip_dual_bound)))


if __name__ == "__main__":
    main()
