"""Base of the methods, which search for plans through an evaluator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from hsdag.base.errors import OptionError, option
from hsdag.methods.incumbent import Incumbent, Limits, Result, Status
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Order, Semantics
from hsdag.search.evaluators.base import Checkpoint, Evaluator, SearchMeasurement

O = TypeVar("O")  # noqa: E741 - stands for options


@dataclass(frozen=True)
class NoOptions:
    """Options of a method without hyper-parameters."""


@dataclass(frozen=True)
class Preset(Generic[O]):
    """Named hyper-parameters of a method, with matching settings of the search.

    Attributes:
        reward: Default reward, one of REWARDS.
        max_share: Largest share of the model's work in one placement unit; None for the default.
        measurement: How often a plan is run to time it during the search.
    """

    options: O
    reward: str = "hybrid"
    max_share: float | None = None
    measurement: SearchMeasurement = field(default_factory=SearchMeasurement)


class Placer(ABC, Generic[O]):
    """A placement method: a class ``...Placer`` in a file of a family's folder, with its ``name`` as a literal.

    Attributes:
        objectives: Names of the objectives that it can search for; None for all.
        executions: Kinds of execution that it can search for.
        gives_order: Whether its plans have orders.
        needs_costs: Whether it computes with the costs of units.
        options_type: Dataclass of its hyper-parameters, whose defaults are the default preset.
        learns: Whether it learns from scores; such a search is not restarted when costs were recalibrated.
        is_seeded: Whether other seeds may find other plans, so that a pool of workers runs several seeds at once. Other
            methods divide their work among the workers, or do not use them.
        num_tried: Approximate number of plans that it evaluates; infinite if unknown.
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
        """Return the presets by name, one of them 'default'; ``is_cheap`` says whether plans will be simulated."""
        return {"default": Preset(cls.options_type())}

    def check(self, problem: Problem) -> None:
        """Raise OptionError for a problem that the method cannot search."""
        self.check_request(problem.objective, problem.semantics, has_costs=problem.costs is not None)

    def check_request(self, objective: Objective, semantics: Semantics, *, has_costs: bool) -> None:
        """Raise OptionError for an objective, an execution or an order that the method does not support."""
        execution = semantics.execution
        if self.objectives is not None and objective.name not in self.objectives:
            choices = " or ".join(self.objectives)
            raise OptionError(
                f"method {self.name!r} is for {option('objective')} {choices}, not {objective.name}; "
                "choose another method"
            )
        if execution not in self.executions:
            choices = " or ".join(kind.value for kind in self.executions)
            raise OptionError(f"method {self.name!r} is for {choices} execution, not {execution.value}")
        if self.needs_costs and not has_costs:
            raise OptionError(
                f"method {self.name!r} needs the costs of ops and transfers, which are unknown here; "
                f"use {option('reward')} hybrid or a problem file"
            )
        by_priority = (
            semantics.order is Order.PRIORITY and objective.depends_on_order and execution is Execution.WORK_CONSERVING
        )
        if by_priority and not self.gives_order:
            raise OptionError(f"{option('order')} priority needs priorities, and method {self.name!r} gives none")

    def search(
        self,
        problem: Problem,
        evaluator: Evaluator,
        limits: Limits | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """Search until the method ends or the evaluator stops it, and return the best evaluated plan.

        Args:
            checkpoint: State of an earlier part of the search, from which methods that can do so continue.

        Raises OptionError as ``check`` does, SearchError for a checkpoint of another search.
        """
        self.check(problem)
        return Incumbent(problem, evaluator, limits or Limits(), checkpoint).concluded(self._search)

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        """Compile the kernels that a search with simulated values calls, unless they are in the machine's cache."""

    @abstractmethod
    def _search(self, incumbent: Incumbent) -> Status:
        """Search through ``incumbent``, which keeps the best plan, and return how the search ended.

        Raises SearchStopped when the evaluator does, GaveUp with the reason if the method found nothing.
        """
