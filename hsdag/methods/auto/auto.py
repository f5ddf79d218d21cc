"""Run a portfolio of the other methods under one budget; this is the default method."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hsdag.base.errors import OptionError
from hsdag.methods import method_names
from hsdag.methods.anneal.windows import has_schedule
from hsdag.methods.base import Placer
from hsdag.methods.exact.stages import EFFORT, Stages, barriers_of
from hsdag.methods.incumbent import LEAST_GAIN, Incumbent, Status
from hsdag.methods.lists.base import search_two_ops
from hsdag.methods.lists.rules import RulesOptions, RulesPlacer
from hsdag.methods.registry import make_placer
from hsdag.methods.repeated.blocks import find_blocks
from hsdag.methods.repeated.coarse import coarse_of
from hsdag.methods.turns import SideBySide, Turn, note_turn
from hsdag.runtime.problem.bounds.makespan import PAIRS_EFFORT
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.search.evaluators.memory import is_split_forced

LISTS = ("met", "heft", "critical-path", "greedy", "pipeline")
"""List schedulers with which the search begins."""
SLOW_LISTS = ("pipeline", "critical-path")
"""List schedulers that are left out if there are more than MOST_UNITS_FOR_ALL units."""
MOST_UNITS_FOR_ALL = 5000
"""Number of units beyond which methods are left out that grow faster than the graph or make many schedules.

These are SLOW_LISTS, rules, and, before windows of a schedule are searched, annealing.
"""
QUICK_LISTS = ("met", "heft", "greedy")
"""List schedulers that run again when a search continues with other costs."""
ROUNDS_OF_RULES = 4
"""Number of rounds of schedules that the learned rules make."""
MOST_UNITS_AT_ONCE = 500
"""Number of units beyond which blocks and windows get more time: annealing simulates all units in each step."""
MOST_CHOICES_TO_PROVE = 250
"""Number of units times devices up to which an exact solver may prove an optimum in seconds."""
MOST_CHOICES_TO_SPLIT = 20_000
"""Number of units times devices up to which MILP-SPLIT finds a plan in seconds."""
OPS_TO_BOUND = 2000
"""Number of ops, for each second that is left, up to which the bounds of stages are added up.

Each op has to be a unit. The bound takes about a tenth of the time.
"""
MOST_IDLE_TURNS = 3
"""End a search without a limit of seconds after this many turns of annealing in a row without a better plan."""
FEW_EVALUATIONS = 32
"""Number of evaluations below which there is no further turn."""
LEAST_S = 0.1
"""Seconds below which there is no further turn: with less time left, the search ends."""


@dataclass(frozen=True)
class AutoOptions:
    """Hyper-parameters of ``auto``. Raises OptionError for a name to leave out that is no method."""

    without: str = ""
    """Methods to leave out, by name, with commas between them."""
    initial: str | None = None
    """Policy file of 'hsdag train' to ask, which --init gives; None: the one that comes with this release."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.left_out if name not in method_names()]:
            raise OptionError(f"auto cannot do without {unknown[0]!r}, which is no method; choose from {LISTS}")

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the names of the methods to leave out."""
        return tuple(name.strip() for name in self.without.split(",") if name.strip())


class AutoPlacer(Placer[AutoOptions]):
    """A portfolio of methods, which take turns.

    List schedulers come first, learned rules among them, and a minimum cut if ops run one after another or the
    objective is steady. Then repeated blocks and heavy ops are searched by themselves, and annealing from the best plan
    takes turns with an exact solver: CP-SAT if the problem is small enough for a proof, otherwise MILP-SPLIT.

    All methods share the best plan and the largest bound, and the search ends when these meet. A method that fails is
    reported, and the others go on. If every plan is measured, annealing follows the quick methods. Raises
    FileFormatError if ``initial`` is no policy.
    """

    name = "auto"
    options_type = AutoOptions
    needs_costs = False
    gives_order = True
    num_tried = 200.0

    def __init__(self, options: AutoOptions | None = None) -> None:
        super().__init__(options)
        self._policy = RulesOptions(ROUNDS_OF_RULES, initial=self.options.initial)
        RulesPlacer(self._policy)  # raises an error for a wrong file

    def _search(self, incumbent: Incumbent) -> Status:
        idle = 0
        if incumbent.limits.known:
            incumbent.evaluate(incumbent.limits.known)
        copy = incumbent.evaluator.for_workers
        turns = (turn for turn in self._turns(incumbent) if turn.method not in self.options.left_out)
        if incumbent.limits.pool is not None and copy is not None:
            if incumbent.best is None and incumbent.problem.costs is not None:
                for turn in itertools.islice(turns, 1):
                    self._take(turn, incumbent)  # so that there is an answer even if the workers fail
            return SideBySide(incumbent, incumbent.limits.pool, copy, MOST_IDLE_TURNS).search(turns)
        for turn in turns:
            incumbent.check()
            if incumbent.left_s < LEAST_S:
                return Status.TIME_LIMIT
            before = incumbent.best_score
            if (status := self._take(turn, incumbent)) in (Status.OPTIMAL, Status.INFEASIBLE):
                return status
            if status is Status.TIME_LIMIT and incumbent.evaluations_left < FEW_EVALUATIONS:
                return status
            gained = incumbent.best_score < before * (1 - LEAST_GAIN)
            idle = 0 if gained or not turn.round else idle + 1
            if idle >= MOST_IDLE_TURNS and not np.isfinite(incumbent.left_s):
                break
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        is_sequential = problem.semantics.execution is Execution.SEQUENTIAL
        others = ("mincut",) if is_sequential or problem.objective.is_steady else ("rules",)
        for method in [m for m in (*_lists(problem), *others) if m not in self.options.left_out]:
            search_two_ops(make_placer(method, is_cheap=True), problem)
        is_deep = has_schedule(problem) and problem.num_units > MOST_UNITS_AT_ONCE
        windows = ["beam"] if _is_unlike(problem) else ["windows"] * is_deep
        for method in ("sa", "repeated", "coarse", *windows):
            if method not in self.options.left_out:
                make_placer(method, is_cheap=True).prepare(problem, takes_order=takes_order)

    def _turns(self, incumbent: Incumbent) -> Iterator[Turn]:
        """Yield the turns in order; annealing goes on to the end."""
        problem, costs = incumbent.problem, incumbent.problem.costs
        if costs is not None:
            yield from self._first_turns(incumbent)
        if not incumbent.is_cheap or costs is None:
            yield Turn("sa", 1.0)
            return
        size = problem.num_units * problem.num_devices
        is_unlike = _is_unlike(problem)
        is_deep = problem.num_units > MOST_UNITS_AT_ONCE
        is_large = problem.num_units > MOST_UNITS_FOR_ALL and has_schedule(problem)
        if is_unlike:
            _prove_by_stages(incumbent, costs)
        if size <= MOST_CHOICES_TO_PROVE:
            yield Turn("cpsat", 0.2)
        yield from _turns_apart(problem, costs)
        if not is_large:
            yield Turn("sa", 0.15)
        if size <= MOST_CHOICES_TO_PROVE:
            yield Turn("cpsat", 0.8, 1)
        elif size <= MOST_CHOICES_TO_SPLIT:
            yield Turn("milp-split", 0.4 if problem.objective.is_steady else 0.15)
        if is_unlike:
            yield Turn("beam", 1.0 if is_large else 0.5)
        has_windows = is_deep or is_unlike
        for number in range(1, 1000):
            if has_windows:
                yield Turn("windows", 1.0 if is_large else 0.5, number)
            yield Turn("sa", 0.5 if has_windows else 1.0, number)

    def _first_turns(self, incumbent: Incumbent) -> Iterator[Turn]:
        """Yield the turns of list schedulers and cuts.

        In a search that continues with other costs, only the quick list schedulers have a turn again.
        """
        problem = incumbent.problem
        is_large = problem.num_units > MOST_UNITS_FOR_ALL
        chosen = [m for m in _lists(problem) if not (is_large and m in SLOW_LISTS)]
        yield from (Turn(method, 0.1) for method in (QUICK_LISTS if incumbent.limits.is_again else chosen))
        is_sequential = problem.semantics.execution is Execution.SEQUENTIAL
        if incumbent.is_cheap and not (is_sequential or is_large or incumbent.limits.is_again):
            yield Turn("rules", 0.1, options=self._policy)  # plans are simulated as in the training of the rules
        if is_sequential or problem.objective.is_steady:
            yield Turn("mincut", 0.3)

    def _take(self, turn: Turn, incumbent: Incumbent) -> Status | None:
        """Let a method search from the best plan, and return its status; None if it fails or cannot search this."""
        limits, before, began_s = incumbent.limits, incumbent.best_score, incumbent.elapsed_s
        known = () if incumbent.best is None else (incumbent.best,)
        seed = limits.seed + turn.round
        limits = replace(limits, seconds=turn.share * incumbent.left_s, seed=seed, known=known, is_again=False)
        if (end := turn.take(incumbent.problem, incumbent, limits)) is None:
            return None
        note_turn(incumbent, turn, began_s, before, end)
        return end.status


def _turns_apart(problem: Problem, costs: ScheduleProblem) -> Iterator[Turn]:
    """Yield the turns of methods that search a part of the problem by itself.

    These search one of several equal blocks, and the heavy units if all units are too many for an exact solver.
    """
    if find_blocks(costs) is not None:
        yield Turn("repeated", 0.9 if problem.num_units > MOST_UNITS_AT_ONCE else 0.15)
    is_large = problem.num_units * problem.num_devices > MOST_CHOICES_TO_PROVE
    if is_large and has_schedule(problem) and coarse_of(costs) is not None:
        yield Turn("coarse", 0.3)


def _prove_by_stages(incumbent: Incumbent, costs: ScheduleProblem) -> None:
    """Report the bound of all stages, if every op is a unit, bounds by pairs take too long, and time allows it."""
    is_bounded = costs.num_ops <= OPS_TO_BOUND * incumbent.left_s
    is_bounded &= costs.num_ops == incumbent.problem.units.fine.num_ops
    if is_bounded and costs.num_ops * len(costs.edge_src) > PAIRS_EFFORT:
        stages = Stages(costs, Execution.WORK_CONSERVING, incumbent.check, EFFORT, cut_by=barriers_of)
        incumbent.report(bound=stages.bound)


def _is_unlike(problem: Problem) -> bool:
    """Return whether beam search has a turn: for schedules without repeated blocks, too large for a proof."""
    is_large = problem.num_units * problem.num_devices > MOST_CHOICES_TO_PROVE
    return is_large and has_schedule(problem) and problem.costs is not None and find_blocks(problem.costs) is None


def _lists(problem: Problem) -> tuple[str, ...]:
    """Return the list schedulers for a problem.

    The method pipeline is left out unless the objective is steady or memory forces a split: mincut does better then.
    """
    forced = problem.objective.is_steady or (problem.costs is not None and is_split_forced(problem.costs))
    return tuple(method for method in LISTS if forced or method != "pipeline")
