"""Placer: a method that searches for plans through an evaluator, and the result of a search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from hsdag.ir.errors import OptionError
from hsdag.methods.incumbent import Incumbent, Limits, Result, Status
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Order, Semantics
from hsdag.scoring.base import Checkpoint, Evaluator, SearchMeasurement

O = TypeVar("O")  # noqa: E741 - options


@dataclass(frozen=True)
class NoOptions:
    """A method without hyper-parameters."""


@dataclass(frozen=True)
class Preset(Generic[O]):
    """Hyper-parameters of a method under a name, with what suits them.

    ``reward`` is the default reward. ``max_share`` is the largest share of all work
    that one unit of a model may have; None leaves the default. ``measurement`` is how a plan is timed in a search.
    """

    options: O
    reward: str = "hybrid"
    max_share: float | None = None
    measurement: SearchMeasurement = field(default_factory=SearchMeasurement)


class Placer(ABC, Generic[O]):
    """A placement method: a class ``...Placer`` in a file of a family's folder, with its ``name`` as a literal.

    ``objectives`` are those it can search for, any where None; ``executions`` those it knows. ``gives_order`` says
    that its plans come with orders, ``needs_costs`` that it computes on the costs of units, ``learns`` that it learns
    from scores: methods that do not start again when costs were recalibrated. ``is_seeded`` says that other seeds may
    find other plans, so that a pool of workers searches with several at once; other methods divide their work among the
    workers, or have no use for them. ``num_tried`` is about how many plans it has evaluated, where that is known.
    ``options_type`` is the dataclass of its hyper-parameters, whose defaults are the default preset.
    """

    name: ClassVar[str]
    objectives: ClassVar[tuple[str, ...] | None] = None
    executions: ClassVar[tuple[Execution, ...]] = tuple(Execution)
    gives_order: ClassVar[bool] = False
    needs_costs: ClassVar[bool] = True
    options_type: ClassVar[type] = NoOptions
    learns: ClassVar[bool] = False
    is_seeded: ClassVar[bool] = False
    num_tried: ClassVar[float] = float("inf")

    def __init__(self, options: O | None = None) -> None:
        self.options: O = self.presets(is_cheap=False)["default"].options if options is None else options

    @classmethod
    def presets(cls, *, is_cheap: bool) -> Mapping[str, Preset[O]]:  # noqa: ARG003
        """The presets by name, 'default' among them; ``is_cheap`` says that plans will be simulated."""
        return {"default": Preset(cls.options_type())}

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Raise OptionError for a problem that the method cannot search, before anything is evaluated."""
        cls.check_request(problem.objective, problem.semantics, has_costs=problem.costs is not None)

    @classmethod
    def check_request(cls, objective: Objective, semantics: Semantics, *, has_costs: bool) -> None:
        """Raise OptionError for an objective, an execution or an order that the method does not know."""
        execution = semantics.execution
        if cls.objectives is not None and objective.name not in cls.objectives:
            choices = " or ".join(cls.objectives)
            raise OptionError(
                f"method {cls.name!r} is for --objective {choices}, not {objective.name}; choose another method"
            )
        if execution not in cls.executions:
            choices = " or ".join(each.value for each in cls.executions)
            raise OptionError(f"method {cls.name!r} is for {choices} execution, not {execution.value}")
        if cls.needs_costs and not has_costs:
            raise OptionError(
                f"method {cls.name!r} needs the costs of ops and transfers, which are unknown here; "
                "use --reward hybrid or a problem file"
            )
        by_priority = (
            semantics.order is Order.PRIORITY and objective.depends_on_order and execution is Execution.WORK_CONSERVING
        )
        if by_priority and not cls.gives_order:
            raise OptionError(f"--order priority needs priorities, and method {cls.name!r} gives none")

    def search(
        self,
        problem: Problem,
        evaluator: Evaluator,
        limits: Limits | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """Search until the method ends or the evaluator stops it; the best plan it had evaluated, and how it ended.

        Goes on from what ``checkpoint`` holds where the method can. Raises OptionError as ``check`` does, SearchError
        for a checkpoint of another search.
        """
        self.check(problem)
        return Incumbent(problem, evaluator, limits or Limits(), checkpoint).concluded(self._search)

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        """Have compiled what a search through simulated values of the problem calls, where the machine has not yet."""

    @abstractmethod
    def _search(self, incumbent: Incumbent) -> Status:
        """Search through ``incumbent``, which keeps the best; how it ended.

        Raises SearchStopped when the evaluator does, GaveUp with the reason where the method found nothing.
        """
