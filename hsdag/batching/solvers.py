"""Batches placed exactly: DiviML's formulation through CP-SAT, and as the paper's mixed-integer program.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

from hsdag.batching.bound import bounded
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import warm_start
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import FloatArray
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.formulation import Formulation, MemoryRule
from hsdag.placers.exact.highs import solve_linear
from hsdag.placers.exact.milp_model import BatchedModel
from hsdag.placers.exact.solving import Ending, follow, solve_aloud

TOLERANCE = 1e-6
"""Share by which HiGHS may be wrong: its bounds are lowered by it."""
MOST_ROWS = 3_000_000
"""Of a program: one of more takes longer to build than anybody waits, and gigabytes."""
ROW_S = 3e-6
"""What a row of the mixed-integer program takes to build, about."""


def search_cpsat(incumbent: BatchIncumbent) -> None:
    """The whole problem at once, from the best list schedule. Raises OptionError for a problem that is too large."""
    problem = incumbent.problem
    _refuse_more_rows(problem.num_waits, problem)
    warm_start(incumbent)
    bounded(incumbent)
    if incumbent.is_closed:
        return
    horizon_s = min(incumbent.best_s, problem.horizon_s)
    model = IntervalModel.of_batches(problem, horizon_s, incumbent.wake)
    limits = incumbent.limits
    if incumbent.best is not None:
        model.hint(incumbent.best)

    def on_solution(found: BatchSchedule) -> None:
        incumbent.consider(found.device, found.start_s)

    ending = follow(
        lambda on_wait: solve_aloud(model, limits, on_solution, on_wait),
        model.ticks.length_of,
        incumbent.prove,
        incumbent.wake,
    )
    incumbent.hit_limit = ending in (Ending.FEASIBLE, Ending.UNKNOWN)


def search_milp(incumbent: BatchIncumbent) -> None:
    """The program (1)-(7) through HiGHS, from the best list schedule. Raises OptionError as CP-SAT does.

    Where the time that is left is too short to build it, the list schedule stands.
    """
    problem = incumbent.problem
    num_rows = problem.num_waits + problem.costs.num_ops**2 * problem.costs.num_devices
    _refuse_more_rows(num_rows, problem)
    warm_start(incumbent)
    bounded(incumbent)
    if incumbent.is_closed:
        return
    if num_rows * ROW_S > incumbent.left_s:
        incumbent.hit_limit = True
        return
    horizon_s = min(incumbent.best_s, problem.horizon_s) * (1 + TOLERANCE)
    formulation = Formulation(problem.costs, MemoryRule.RESERVED)
    model = BatchedModel(formulation, horizon_s, problem.within(horizon_s).batches)
    limits = incumbent.limits

    def on_solution(values: FloatArray) -> None:
        found = model.read(values)
        incumbent.consider(found.device, found.start_s)

    hint = model.hint(incumbent.best.device) if incumbent.best is not None else None
    ending = follow(
        lambda on_wait: solve_linear(model.linear, limits, on_solution, on_wait, hint),
        lambda bound: bound * model.unit_s * (1 - TOLERANCE),
        incumbent.prove,
        incumbent.wake,
        incumbent.best_s * (1 - TOLERANCE),
    )
    incumbent.hit_limit = ending in (Ending.FEASIBLE, Ending.UNKNOWN)


def _refuse_more_rows(num_rows: int, problem: BatchedProblem) -> None:
    if num_rows > MOST_ROWS:
        ops, devices = problem.costs.num_ops, problem.costs.num_devices
        raise OptionError(
            f"the batched program of {ops:,} ops on {devices} devices would have about {num_rows:,} rows, and "
            f"{MOST_ROWS:,} is the limit: use --method heft, greedy, ea or milp-split"
        )
