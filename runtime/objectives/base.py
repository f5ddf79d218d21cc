"""Objective: the figure of a plan that a search minimises, how it is simulated, and how it is measured.

Legend: N ops, B placements.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

from hsdag.ir.errors import OptionError

if TYPE_CHECKING:  # an objective goes with a candidate into the measuring process, which simulates nothing
    from numpy.typing import ArrayLike

    from hsdag.ir.graph.computation_graph import FloatArray, IntArray
    from hsdag.runtime.costs.placement_costs import PlacementCosts, Ranks
    from hsdag.runtime.problem.bounds import Bound
    from hsdag.runtime.problem.schedule_problem import ScheduleProblem
    from hsdag.runtime.problem.semantics import Execution, Semantics


class Meter(Protocol):
    """A compiled model that can be run and timed."""

    def single_runs(self, count: int) -> list[float]:
        """Seconds of inferences run one after another, at most ``count``."""

    def in_flight(self, count: int) -> float:
        """Mean seconds per inference of ``count`` or more with several in flight."""

    def energy_j(self, count: int) -> float:
        """Mean joules of an inference, of ``count`` or more; by the machine's counters."""

    def peak_bytes(self) -> float:
        """Bytes of the fullest device at its fullest moment; simulated, since devices tell no peaks."""


class Objective(ABC):
    """The figure that a search minimises.

    A file of this folder that ends with ``OBJECTIVE = ...`` adds one, named like the file. Values are in ``unit``, SI.
    ``meaning`` completes the sentence 'a lower value means ...', ``value_name`` is its field in JSON answers, which
    ends with the unit. People see values in ``shown_unit``, of which ``shown_factor`` make one of ``unit``; a plan
    ``takes`` so many times as long, or as much. ``is_steady`` says that inferences follow each other
    without a gap, so that the loads of devices count and the schedule of one inference does not. ``properties`` are
    OpenVINO's for compiling.
    """

    name: str
    unit: ClassVar[str]
    meaning: ClassVar[str]
    value_name: ClassVar[str]
    shown_unit: ClassVar[str] = "ms"
    shown_factor: ClassVar[float] = 1e3
    takes: ClassVar[str] = "times as long"
    is_steady: ClassVar[bool] = False
    properties: ClassVar[Mapping[str, str]] = {}

    @property
    def counts_memory(self) -> bool:
        """Whether peaks of memory are part of the value; of models these are simulated, whatever else is measured."""
        return False

    @property
    def suffix(self) -> str:
        """The unit, as the names of JSON fields end with it."""
        return self.value_name.rpartition("_")[2]

    @property
    def label(self) -> str:
        """What the value is called."""
        return self.value_name.removesuffix(f"_{self.suffix}").replace("_", " ") if self.unit else "weighted sum"

    def figure(self, value: float) -> str:
        """A value with four digits in ``shown_unit``, which goes without saying."""
        return f"{self.shown_factor * value:.4g}"

    def text(self, value: float) -> str:
        """A value with its unit."""
        return f"{self.figure(value)} {self.shown_unit}".strip()

    @abstractmethod
    def check(self, semantics: Semantics) -> None:
        """Raise OptionError for semantics that the objective is not defined under."""

    def check_problem(self, problem: ScheduleProblem) -> None:  # noqa: B027 - most need costs alone
        """Raise OptionError where a problem lacks figures that the value is made of."""

    def check_machine(self) -> None:  # noqa: B027 - most take a clock alone
        """Raise DeviceError where the value cannot be measured on this machine."""

    def settled(self, best_single: Callable[[Objective], float]) -> Objective:
        """The objective once it is known what the best single device has, for it or for another one."""
        return self

    @abstractmethod
    def uses_order(self, execution: Execution) -> bool:
        """Whether the value depends on the order in which a device takes ready ops."""

    @abstractmethod
    def simulated(
        self, problem: ScheduleProblem, placements: IntArray, semantics: Semantics, priority: ArrayLike | None = None
    ) -> FloatArray:
        """[B] values of ``placements`` [B, N] with ranks [N]; infinite where an op is not supported.

        Raises OptionError as ``check`` does.
        """

    @abstractmethod
    def lower_bound(self, problem: ScheduleProblem, execution: Execution) -> Bound:
        """A value that no plan is below, for any order and links, without noise, and what proves it."""

    @abstractmethod
    def of_model(
        self,
        costs: PlacementCosts,
        placements: IntArray,
        ranks: Ranks | None = None,
        peak_bytes: FloatArray | None = None,
    ) -> FloatArray:
        """[B] simulated values of a model under ``placements`` [B, N]; infinite where one is illegal.

        ``peak_bytes`` [B] are those of the fullest devices, where the objective counts memory.
        """

    @abstractmethod
    def calibrated(
        self, costs: PlacementCosts, placements: IntArray, measured: FloatArray, ranks: Ranks | None = None
    ) -> tuple[PlacementCosts, float]:
        """Costs, and a factor on their values, refitted to measured values [B] of ``placements`` [B, N]."""

    @abstractmethod
    def measured(self, meter: Meter, runs: int) -> list[float]:
        """Measured values of about ``runs`` inferences, at least one."""


def objective_names() -> tuple[str, ...]:
    """Every objective that ``--objective`` takes."""
    found = pkgutil.iter_modules(importlib.import_module(__package__).__path__)
    return tuple(sorted(module.name.replace("_", "-") for module in found if module.name not in ("base", "weighted")))


def find_objective(name: str) -> Objective:
    """An objective by name, or a weighted sum such as ``latency=1,memory=0.5``.

    Raises OptionError that lists the choices.
    """
    if "=" in name:
        from hsdag.runtime.objectives.weighted import Weighted

        return Weighted.parse(name)
    if name not in objective_names():
        choices = ", ".join(objective_names())
        raise OptionError(
            f"unknown objective {name!r}; choose one of {choices}, or a weighted sum such as latency=1,memory=0.5"
        )
    module = importlib.import_module(f"{__package__}.{name.replace('-', '_')}")
    objective: Objective = module.OBJECTIVE
    return objective
