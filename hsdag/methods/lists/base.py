"""Base classes of placers that schedule ops one by one. Legend: U placement units."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

from hsdag.base.errors import OptionError
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.base import NoOptions, O, Placer
from hsdag.methods.incumbent import Incumbent, Limits, Status
from hsdag.methods.lists.load_balance import balanced_placement
from hsdag.methods.lists.schedule import ListSchedule, list_schedule
from hsdag.methods.memory_repair import fastest_devices, repaired
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import Tables, tables_of
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.schedule import ScheduleEvaluator

TWO_OPS = ScheduleProblem.from_arrays([[1.0, 1.0]] * 2, [(0, 1)])
"""Two-op problem that is searched only to trigger the compilation of kernels."""


def search_two_ops(placer: Placer[Any], problem: Problem) -> None:
    """Compile the kernels that a search of ``problem`` calls, by searching two ops for the same objective."""
    with suppress(OptionError):  # the method does not support this objective
        evaluator = ScheduleEvaluator(TWO_OPS, problem.semantics, problem.objective)
        limits = Limits(seconds=0.0) if isinstance(placer, ListPlacer) else None
        placer.search(problem_of(TWO_OPS, problem.objective, problem.semantics), evaluator, limits)


class ListPlacer(Placer[O]):
    """A placer that derives one or a few plans from costs alone and has them evaluated.

    The warm start, every unit on its fastest device, is evaluated first; the result is the best of the method's plans.
    Placements that exceed a memory are repaired, or evaluated as they are if no repair is found. For latency the
    schedules assume that devices work side by side over independent links. Under sequential execution they still
    minimise that makespan, and only the choice among several plans follows the evaluator.
    """

    objectives: ClassVar[tuple[str, ...]] = ("latency", "throughput")
    gives_order = True
    num_tried = 12.0

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:  # noqa: ARG002
        search_two_ops(self, problem)

    @abstractmethod
    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:
        """Yield the method's plans, at least one."""

    def _search(self, incumbent: Incumbent) -> Status:
        problem, costs, semantics = incumbent.problem, incumbent.costs, incumbent.problem.semantics
        incumbent.evaluator.evaluate([Plan(repaired(costs, fastest_devices(costs), semantics))])
        for plan in self.proposals(problem, incumbent.limits.seed):
            incumbent.consider(repaired(costs, plan.placement, semantics), plan.priority)
        return Status.FEASIBLE


class SchedulePlacer(ListPlacer[NoOptions]):
    """A method that makes one schedule for latency, and one placement that balances loads for throughput.

    ``insertion`` is passed to ``list_schedule``, and ``by_start`` to ``balanced_placement``.
    """

    insertion: ClassVar[bool] = False
    by_start: ClassVar[bool] = False

    @abstractmethod
    def urgency(self, tables: Tables) -> FloatArray:
        """Return the urgency of each op, [U]; the largest is scheduled first, ties by op index."""

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        """Schedule ops by urgency, each on the device where it ends first."""
        tables = tables_of(costs)
        return list_schedule(tables, self.urgency(tables), insertion=self.insertion)

    def proposals(self, problem: Problem, seed: int) -> Iterator[Plan]:  # noqa: ARG002
        """Yield one plan."""
        costs, links = problem.known_costs, problem.semantics.links
        if problem.objective.is_steady:
            tables = tables_of(costs)
            yield Plan(balanced_placement(tables, self.urgency(tables), links, by_start=self.by_start))
        else:
            yield self.schedule(costs).plan
