"""Define the options of searches, check them, and parse their values from text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hsdag.base.errors import OptionError, check_seed, chosen, flag, option
from hsdag.ir.placement.placement import REFERENCES, ExecutorChoice, ExecutorName, Placement, ReferenceName
from hsdag.methods import REWARDS
from hsdag.methods.base import Placer, Preset
from hsdag.methods.registry import find_preset, make_placer
from hsdag.runtime.machine.energy_counters import EnergyCounters
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.objectives import LATENCY, Objective, Quantity, find_objective
from hsdag.runtime.problem.pins import Pin, parse_pins
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.search.evaluators.recording import Budget
from hsdag.workers.option import check_workers

if TYPE_CHECKING:  # not at run time: they load OpenVINO
    from hsdag.ir.graph.scenario import Scenario

EXECUTION: dict[ExecutorChoice, Execution] = {
    "auto": Execution.WORK_CONSERVING,
    "hetero": Execution.SEQUENTIAL,
    "work-conserving": Execution.WORK_CONSERVING,
    "cuda": Execution.WORK_CONSERVING,
}
ANY_PRECISION = "any"
"""Value in place of a precision: also try precisions below the devices' defaults."""

_DURATION = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?")
_UNIT_BYTES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNIT_BYTES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _shapes(shapes: Any) -> dict[str, tuple[int, ...]]:
    from hsdag.ir.graph.reader import input_shapes  # which loads OpenVINO

    return input_shapes(shapes)


def parse_memory(text: str | Mapping[str, str | float] | None) -> dict[str, float]:
    """Return bytes by device, parsed from ``GPU.0=8GB,GPU.1=512MiB`` or a mapping. Raises OptionError otherwise."""
    size_bytes: dict[str, float] = {}
    for item in text.split(",") if isinstance(text, str) else [f"{name}={size}" for name, size in (text or {}).items()]:
        name, _, size = (part.strip() for part in item.rpartition("="))
        match = _SIZE.fullmatch(size)
        if match is None or not name or not float(match[1]) > 0:
            raise OptionError(
                f"{option('memory')} {text!r}: {item.strip()!r} is not of the form DEVICE=SIZE, such as GPU.0=8GB"
            )
        if name in size_bytes:
            raise OptionError(f"{option('memory')} {text!r} gives device {name!r} two sizes")
        size_bytes[name] = float(match[1]) * _UNIT_BYTES[match[2] or ""]
    return size_bytes


def parse_duration(text: str | float, parameter: str = "budget") -> float:
    """Return the seconds of a number, ``60s``, ``2m`` or ``1h``.

    Raises OptionError, which names ``parameter``, for another form and for a duration that is not more than zero.
    """
    if (match := _DURATION.fullmatch(str(text).strip().lower())) is None:
        raise OptionError(f"{option(parameter)} {text!r} is not a duration; write for example 60s, 5m or 1h")
    seconds = float(match[1]) * _UNIT_S[match[2] or "s"]
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{option(parameter)} must be more than zero, not {text!r}")
    return seconds


def parse_executor(text: str) -> ExecutorChoice:
    """Return the executor of that name, or "auto". Raises OptionError, which lists the choices, for another name."""
    return chosen("executor", text, EXECUTION)


def executor_of(text: str) -> ExecutorName:
    """Return the executor for which a search looks for placements: for "auto" it is "work-conserving".

    Raises OptionError, which lists the choices, for an unknown name.
    """
    return "work-conserving" if (choice := parse_executor(text)) == "auto" else choice


def _metadata(*, argument: str | None = None, read: Callable[[Any], Any] | None = None, recorded: Any = None) -> Any:
    """Return the metadata of an option's field.

    Args:
        argument: Parameter of the API call that sets the field, if its name differs.
        read: Function that parses the argument.
        recorded: Type of the value in run.json, in which a resumed search must agree; None if it is not recorded.
    """
    return {"argument": argument, "read": read, "recorded": recorded}


@dataclass(frozen=True)
class SearchOptions:
    """Options of every search. Raises OptionError for a value outside its range."""

    method: str = field(default="auto", metadata=_metadata(recorded=str))
    objective: Objective = field(default=LATENCY, metadata=_metadata(read=find_objective, recorded=str))
    budget_s: float = field(default=60.0, metadata=_metadata(argument="budget", read=parse_duration))
    max_evaluations: int | None = None
    seed: int = field(default=0, metadata=_metadata(recorded=int))
    preset: str = field(default="default", metadata=_metadata(recorded=str))
    changes: Mapping[str, str] = field(default_factory=dict, metadata=_metadata(recorded=dict[str, str]))
    workers: str | None = None
    """Other processes that share the search: ``local:N``, ``ray`` or ``ray://HOST:PORT``."""
    num_threads: int = field(default_factory=usable_cpus)
    """Number of threads for methods that compute with several."""

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise OptionError(f"the budget must be more than zero, not {self.budget_s:g} s")
        if self.workers is not None:
            check_workers(self.workers)
        check_seed(self.seed)
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise OptionError(f"{option('max_evaluations')} must be at least 1, not {self.max_evaluations}")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the options set by the arguments of an API call; arguments that set none are ignored.

        Raises OptionError for a text that cannot be parsed and for a value outside its range.
        """
        values = {}
        for setting in fields(cls):
            argument, read = setting.metadata.get("argument") or setting.name, setting.metadata.get("read")
            if argument in arguments:
                values[setting.name] = read(arguments[argument]) if read is not None else arguments[argument]
        return cls(**values)

    @property
    def budget(self) -> Budget:
        """Return the seconds and evaluations that the search may spend."""
        return Budget(self.budget_s, np.inf if self.max_evaluations is None else self.max_evaluations)

    def placer(self, *, is_cheap: bool = True) -> Placer[Any]:
        """Return the method with its hyper-parameters. Raises OptionError for an unknown name or a wrong value.

        Args:
            is_cheap: Whether plans are simulated, not measured.
        """
        return make_placer(self.method, self.preset, self.changes, is_cheap=is_cheap)


@dataclass(frozen=True)
class SolveOptions(SearchOptions):
    """Options of a search for a placement of a problem."""

    budget_s: float = field(default=10.0, metadata=_metadata(argument="budget", read=parse_duration))
    semantics: Semantics = field(default_factory=Semantics)
    start: Plan | None = None
    """Plan over ops that is evaluated first, so that the answer is at least as good."""
    pins: tuple[Pin, ...] = field(default=(), metadata=_metadata(read=parse_pins))
    memory_bytes: Mapping[str, float] = field(
        default_factory=dict, metadata=_metadata(argument="memory", read=parse_memory)
    )
    """Memory limits in bytes, by device, that replace the problem's own."""


@dataclass(frozen=True)
class PlaceOptions(SearchOptions):
    """Options of ``hsdag place``, without the model."""

    devices: str | None = field(
        default=None,
        metadata=_metadata(read=lambda value: value if value is None or isinstance(value, str) else ",".join(value)),
    )
    partition_cpu: int | None = None
    executor: ExecutorChoice = field(default="auto", metadata=_metadata(read=parse_executor, recorded=str))
    reward: str | None = field(default=None, metadata=_metadata(recorded=str))
    fresh: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict, metadata=_metadata(argument="shape", read=_shapes)
    )
    inputs: Path | None = field(
        default=None, metadata=_metadata(read=lambda value: value if value is None else Path(value))
    )
    scenarios: tuple[Scenario, ...] = ()
    memory_bytes: Mapping[str, float] = field(
        default_factory=dict, metadata=_metadata(argument="memory", read=parse_memory, recorded=dict[str, float])
    )
    pins: tuple[Pin, ...] = field(default=(), metadata=_metadata(read=parse_pins, recorded=tuple[str, ...]))
    precision: str | None = field(default=None, metadata=_metadata(argument="infer_precision"))
    """Precision hint for all devices; with ANY_PRECISION the fastest whose outputs agree with the reference."""
    candidate_limit_s: float = field(
        default=120.0,
        metadata=_metadata(argument="candidate_limit", read=partial(parse_duration, parameter="candidate_limit")),
    )
    reference: ReferenceName = field(
        default="cpu",
        metadata=_metadata(read=lambda value: chosen("reference", value, REFERENCES), recorded=str | None),
    )
    max_difference: float | None = field(default=None, metadata=_metadata(recorded=float | None))
    """Largest allowed difference of outputs from the reference's, relative to the reference's largest value."""
    finalists: int = 3
    start: Placement | None = None
    """Placement that only a faster one replaces, for example the one in use."""
    protocol: Protocol = field(default_factory=Protocol)
    arguments: tuple[str, ...] | None = None
    """Words of the command line that repeats the call, without the model; None if there is none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.candidate_limit_s > 0:
            raise OptionError(f"the time limit per candidate must be more than zero, not {self.candidate_limit_s:g} s")
        if self.max_difference is not None and not 0 <= self.max_difference < np.inf:
            raise OptionError(
                f"{option('max_difference')} must be a number and not negative, not {self.max_difference:g}"
            )
        if self.reward is not None:
            chosen("reward", self.reward, REWARDS)
        parse_executor(self.executor)
        if self.memory_bytes and self.resolved_reward == "measured":
            raise OptionError(
                f"{option('memory')} needs a search that simulates: choose {option('reward')} hybrid or simulated"
            )

    @property
    def search_executor(self) -> ExecutorName:
        """Return the executor for which the search looks for placements."""
        return executor_of(self.executor)

    @property
    def semantics(self) -> Semantics:
        """Return the semantics under which the executor's runs are simulated."""
        return Semantics(execution=EXECUTION[self.executor])

    @property
    def resolved_reward(self) -> str:
        """Return the requested reward, by default that of the method's preset."""
        return self.reward or self.chosen_preset.reward

    @property
    def chosen_preset(self) -> Preset[Any]:
        """Return the method's preset. Raises OptionError for an unknown method or preset."""
        return find_preset(self.method, self.preset)

    def record(self) -> dict[str, Any]:
        """Return the options recorded in run.json; ``reference`` is None if no difference of outputs is limited."""
        record = {name: _plain(getattr(self, name)) for name in recorded_options()}
        reference = None if self.max_difference is None else self.reference
        return record | {"reward": self.resolved_reward, "reference": reference}

    def check(self) -> None:
        """Raise OptionError if the method cannot optimise the objective with this reward and executor.

        Raises DeviceError if the objective needs energy and the machine has no energy counters.
        """
        self.semantics.check(self.objective)
        if self.objective.counts_memory and self.resolved_reward == "measured":
            raise OptionError(
                f"{option('objective')} {self.objective.name} needs a search that simulates: choose "
                f"{option('reward')} hybrid or simulated"
            )
        if Quantity.ENERGY in self.objective.quantities:
            EnergyCounters.find()
        placer = self.placer(is_cheap=False)
        placer.check_request(self.objective, self.semantics, has_costs=self.resolved_reward != "measured")


def recorded_options() -> dict[str, tuple[Any, Any]]:
    """Return the type and the default, as JSON values, of each option of ``place`` recorded in run.json."""
    default = PlaceOptions()
    recorded = {setting.name: setting.metadata.get("recorded") for setting in fields(PlaceOptions)}
    return {name: (kind, _plain(getattr(default, name))) for name, kind in recorded.items() if kind is not None}


def _plain(value: Any) -> Any:
    """Return an option's value as a JSON value."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return tuple(pin.text for pin in value)
    return value.name if isinstance(value, Objective) else value


def command_words(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return keyword arguments of ``hsdag.place`` as words of a command line, leaving out those with default values.

    Returns None if an argument has no text form, for example a placement in memory.
    """
    words: list[str] = []
    for name, value in arguments.items():
        if value == defaults[name] or (not value and not defaults[name]):
            continue
        if isinstance(value, bool):
            words.append(flag(name))
            continue
        if name == "shape" and isinstance(value, Mapping):
            value = ",".join(f"{port}[{','.join(map(str, size))}]" for port, size in value.items())
        elif name == "devices" and not isinstance(value, str):
            value = ",".join(value)
        elif name == "memory" and isinstance(value, Mapping):
            value = ",".join(f"{key}={size}" for key, size in value.items())
        elif isinstance(value, Mapping):
            value = [f"{key}={text}" for key, text in value.items()]
        if not isinstance(value, str | int | float | Path | list | tuple):
            return None
        for word in value if isinstance(value, list | tuple) else (value,):
            words += [flag(name), str(word)]
    return tuple(words)
