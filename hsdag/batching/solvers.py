"""Batches placed exactly: DiviML's formulation through CP-SAT, and as the paper's mixed-integer program.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

from hsdag.batching.bound import bounded
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import warm_start
from hsdag.ir.errors import OptionError
from hsdag.placers.exact.cpsat import CpSatPlacer
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.formulation import Formulation, MemoryRule
from hsdag.placers.exact.highs import TOLERANCE
from hsdag.placers.exact.milp import MilpPlacer
from hsdag.placers.exact.milp_model import BatchedModel
from hsdag.placers.exact.solving import Program, cpsat_program
from hsdag.placers.incumbent import Status
from hsdag.runtime.problems.bounds import Bound

MOST_ROWS = 3_000_000
"""Of a program: one of more takes longer to build than anybody waits, and gigabytes."""
ROW_S = 3e-6
"""What a row of the mixed-integer program takes to build, about."""


def search_cpsat(incumbent: BatchIncumbent) -> None:
    """The whole problem at once, from the best list schedule. Raises OptionError for a problem that is too large."""
    problem = incumbent.problem
    if not _begin(incumbent, problem.num_waits):
        return
    model = IntervalModel.of_batches(problem, min(incumbent.best_s, problem.horizon_s), incumbent.wake)
    if incumbent.best is not None:
        model.hint(incumbent.best)
    _follow(incumbent, cpsat_program(model, model.ticks, incumbent.consider_schedule), CpSatPlacer.argument)


def search_milp(incumbent: BatchIncumbent) -> None:
    """The program (1)-(7) through HiGHS, from the best list schedule. Raises OptionError as CP-SAT does.

    Where the time that is left is too short to build it, the list schedule stands.
    """
    problem = incumbent.problem
    num_rows = problem.num_waits + problem.costs.num_ops**2 * problem.costs.num_devices
    if not _begin(incumbent, num_rows):
        return
    if num_rows * ROW_S > incumbent.left_s:
        incumbent.hit_limit = True
        return
    horizon_s = min(incumbent.best_s, problem.horizon_s) * (1 + TOLERANCE)
    model = BatchedModel(Formulation(problem.costs, MemoryRule.RESERVED), horizon_s, problem.within(horizon_s).batches)
    start = None if incumbent.best is None else incumbent.best.device
    _follow(incumbent, model.program(incumbent.consider_schedule, start), MilpPlacer.argument)


def _begin(incumbent: BatchIncumbent, num_rows: int) -> bool:
    """The best list schedule and the simple bounds; whether anything is left to find. Raises OptionError."""
    if num_rows > MOST_ROWS:
        ops, devices = incumbent.problem.costs.num_ops, incumbent.problem.costs.num_devices
        raise OptionError(
            f"the batched program of {ops:,} ops on {devices} devices would have about {num_rows:,} rows, and "
            f"{MOST_ROWS:,} is the limit: use --method heft, greedy, ea or milp-split"
        )
    warm_start(incumbent)
    bounded(incumbent)
    return not incumbent.is_closed


def _follow(incumbent: BatchIncumbent, program: Program, argument: str) -> None:
    def prove(bound_s: float) -> None:
        incumbent.prove(Bound(bound_s, argument))

    ending = program.follow(incumbent.limits, prove, incumbent.wake, incumbent.best_s)
    incumbent.hit_limit = ending in (Status.FEASIBLE, Status.TIME_LIMIT)
