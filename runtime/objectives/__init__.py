"""Objectives: the figure of a plan that a search minimises; a file of this folder adds one by its name.

Simulators, costs and measurements supply the quantities that it consists of; nothing is simulated here. Legend: B
plans, Q quantities, T terms.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, ClassVar

from hsdag.base.errors import OptionError, option

if TYPE_CHECKING:  # names are listed before any array library is loaded
    from hsdag.ir.graph.computation_graph import FloatArray


PLUG_INS = "hsdag.objectives"
"""Group of entry points that are objectives of other packages: modules with an ``OBJECTIVE``."""


class Quantity(Enum):
    """A quantity of a plan that is simulated or measured."""

    LATENCY = "seconds of one inference, from its start to its end"
    PERIOD = "seconds from one result to the next while inferences follow each other without a gap"
    ENERGY = "joules of one inference"
    PEAK = "bytes of weights and results that the fullest device holds at its fullest moment"


@dataclass(frozen=True)
class Objective:
    """The figure that a search minimises; values are in ``unit``, SI.

    ``value_name`` is the value's name, ending with the unit. People see values in ``shown_unit``, of which
    ``shown_factor`` make one of ``unit`` unless ``shown`` says otherwise; ``takes`` completes 'a plan takes 2 ...', as
    'times as long'.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    value_name: ClassVar[str]
    quantities: ClassVar[tuple[Quantity, ...]]  # [Q]
    shown_unit: ClassVar[str] = "ms"
    shown_factor: ClassVar[float] = 1e3
    takes: ClassVar[str] = "times as long"
    bound_name: ClassVar[str] = "lower bound"  # of what is shown

    def value(self, *figures: FloatArray) -> FloatArray:
        """Return [B] values from ``figures`` [Q, B] of the quantities, bounds from bounds; by default the first."""
        return figures[0]

    def scaled(self, best_single: Callable[[Objective], float]) -> Objective:
        """Return the objective scaled by the values of the best single device; by default unchanged."""
        return self

    @property
    def is_steady(self) -> bool:
        """Return whether only the loads of devices count, and not the schedule of one inference."""
        return self.quantities == (Quantity.PERIOD,)

    @property
    def counts_memory(self) -> bool:
        """Return whether peaks of memory are part of the value; of models these are always simulated."""
        return Quantity.PEAK in self.quantities

    @property
    def depends_on_order(self) -> bool:
        """Return whether the value depends on the order in which devices that work side by side take ready ops."""
        return Quantity.LATENCY in self.quantities or self.counts_memory

    @property
    def suffix(self) -> str:
        """Return the unit at the end of the names of JSON fields."""
        return self.value_name.rpartition("_")[2]

    @property
    def label(self) -> str:
        """Return the name of the value, for people."""
        return self.value_name.removesuffix(f"_{self.suffix}").replace("_", " ") if self.unit else "weighted sum"

    def shown(self, value: float) -> float:
        """Return a value in ``shown_unit``."""
        return self.shown_factor * value

    def figure(self, value: float) -> str:
        """Return a value in ``shown_unit`` with four digits, without the unit."""
        return f"{self.shown(value):.4g}"

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{self.figure(value)} {self.shown_unit}".strip()


class Latency(Objective):
    """The seconds of one inference: the makespan of its ops."""

    name, unit, value_name = "latency", "s", "makespan_s"
    quantities = (Quantity.LATENCY,)


class Throughput(Objective):
    """The seconds per inference with many in flight: the load of the busiest resource."""

    name, unit, value_name = "throughput", "s", "period_s"
    quantities = (Quantity.PERIOD,)
    shown_unit = "inferences/s"
    bound_name = "upper bound"

    @property
    def label(self) -> str:
        """Return the name of what people see: the rate, the inverse of the value."""
        return "throughput"

    def shown(self, value: float) -> float:
        """Return inferences a second."""
        return 1.0 / value if value > 0 else math.inf


class Energy(Objective):
    """The joules of one inference.

    Simulated, they are the sum of each device's time for ops times its power while it computes; measured, the machine's
    energy counters, with idle devices. Models have no power figures: for them a search looks for short inferences,
    whose energy is measured.
    """

    name, unit, value_name = "energy", "J", "energy_j"
    quantities = (Quantity.ENERGY,)
    shown_unit = "mJ"
    takes = "times the energy"


class Memory(Objective):
    """The bytes of weights and results that the fullest device holds at its fullest moment, by simulation."""

    name, unit, value_name = "memory", "B", "peak_bytes"
    quantities = (Quantity.PEAK,)
    shown_unit, shown_factor = "MB", 1e-6
    takes = "times the memory"


LATENCY, THROUGHPUT, ENERGY, MEMORY = Latency(), Throughput(), Energy(), Memory()
BUILT_IN: dict[str, Objective] = {objective.name: objective for objective in (ENERGY, LATENCY, MEMORY, THROUGHPUT)}


@dataclass(frozen=True)
class Weighted(Objective):
    """The sum of terms, each with its weight, over the sum of weights.

    A term is the value of an objective over that of the best single device for it, ``scales`` [T], which are known once
    the problem is: so a plan that is as good as these in everything has the value 1.
    """

    name: str  # type: ignore[misc]  # of each sum its own
    terms: tuple[tuple[Objective, float], ...]  # [T]
    scales: tuple[float, ...] | None = None  # [T]

    unit, value_name = "", "weighted_sum"
    shown_unit, shown_factor = "", 1.0
    takes = "times the weighted sum"

    @property
    def quantities(self) -> tuple[Quantity, ...]:  # type: ignore[override]
        """Return [Q] the quantities of all terms."""
        return tuple(dict.fromkeys(quantity for term, _ in self.terms for quantity in term.quantities))

    @staticmethod
    def parse(text: str) -> Weighted:
        """Parse a sum as ``latency=1,memory=0.5``. Raises OptionError for other forms, or like ``find_objective``."""
        terms: dict[Objective, float] = {}
        for item in text.split(","):
            name, equals, weight = (part.strip() for part in item.partition("="))
            try:
                share = float(weight)
            except ValueError:
                share = math.nan
            if not equals or not 0 < share < math.inf:
                raise OptionError(
                    f"{option('objective')} {text!r}: {item.strip()!r} is not of the form OBJECTIVE=WEIGHT, with a "
                    "weight above 0, such as latency=1,memory=0.5"
                )
            term = find_objective(name)
            if term in terms:
                raise OptionError(f"{option('objective')} {text!r} gives {name} two weights")
            terms[term] = share
        return Weighted(",".join(f"{term.name}={share:g}" for term, share in terms.items()), tuple(terms.items()))

    def scaled(self, best_single: Callable[[Objective], float]) -> Weighted:
        """Return the objective scaled by the values of the best single device, with 1 in place of 0."""
        return replace(self, scales=tuple(best_single(term) or 1.0 for term, _ in self.terms))

    def value(self, *figures: FloatArray) -> FloatArray:
        """Return the weighted sum."""
        assert self.scales is not None, "scaled once the problem is known"
        figure_of = dict(zip(self.quantities, figures, strict=True))
        total = sum(share for _, share in self.terms)
        weighted: FloatArray = sum(  # type: ignore[assignment]  # there are terms
            share / total / scale * term.value(*(figure_of[quantity] for quantity in term.quantities))
            for (term, share), scale in zip(self.terms, self.scales, strict=True)
        )
        return weighted


def objective_names() -> tuple[str, ...]:
    """Return the names of all objectives that ``--objective`` takes."""
    return tuple(sorted({*BUILT_IN, *_modules()}))


def _modules() -> dict[str, str]:
    """Return the module of every further objective by name: files of this folder, entry points of other packages."""
    files = {module.name.replace("_", "-"): f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)}
    return {entry.name: entry.module for entry in entry_points(group=PLUG_INS)} | files


def find_objective(name: str) -> Objective:
    """Return an objective by name, or a weighted sum such as ``latency=1,memory=0.5``.

    Raises OptionError that lists the choices.
    """
    if "=" in name:
        return Weighted.parse(name)
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name not in objective_names():
        choices = ", ".join(objective_names())
        raise OptionError(
            f"unknown objective {name!r}; choose one of {choices}, or a weighted sum such as latency=1,memory=0.5"
        )
    objective: Objective = importlib.import_module(_modules()[name]).OBJECTIVE
    return objective
