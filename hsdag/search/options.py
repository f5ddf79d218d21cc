"""Options of searches, checked; and their values from text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hsdag.ir.errors import OptionError, check_seed, chosen
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
from hsdag.scoring.recording import Budget
from hsdag.workers.pool import check_workers

if TYPE_CHECKING:  # not at run time: they load OpenVINO
    from hsdag.ir.graph.scenario import Scenario

EXECUTION: dict[ExecutorChoice, Execution] = {
    "auto": Execution.WORK_CONSERVING,
    "hetero": Execution.SEQUENTIAL,
    "work-conserving": Execution.WORK_CONSERVING,
    "cuda": Execution.WORK_CONSERVING,
}
ANY_PRECISION = "any"
"""In place of a precision: settings are tried that lower it below what devices take by default."""

_DURATION = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?")
_UNIT_BYTES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNIT_BYTES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _shapes(given: Any) -> dict[str, tuple[int, ...]]:
    from hsdag.ir.graph.reader import input_shapes  # which loads OpenVINO

    return input_shapes(given)


def parse_memory(text: str | Mapping[str, str | float] | None) -> dict[str, float]:
    """Bytes by device from ``GPU.0=8GB,GPU.1=512MiB``, or a mapping. Raises OptionError for another form."""
    found: dict[str, float] = {}
    for item in text.split(",") if isinstance(text, str) else [f"{name}={size}" for name, size in (text or {}).items()]:
        name, _, size = (part.strip() for part in item.rpartition("="))
        match = _SIZE.fullmatch(size)
        if match is None or not name or not float(match[1]) > 0:
            raise OptionError(f"--memory {text!r}: {item.strip()!r} is not of the form DEVICE=SIZE, such as GPU.0=8GB")
        if name in found:
            raise OptionError(f"--memory {text!r} gives device {name!r} two sizes")
        found[name] = float(match[1]) * _UNIT_BYTES[match[2] or ""]
    return found


def parse_duration(text: str | float, option: str = "--budget") -> float:
    """Seconds from a number, ``60s``, ``2m`` or ``1h``. Raises OptionError unless it is more than zero."""
    if (match := _DURATION.fullmatch(str(text).strip().lower())) is None:
        raise OptionError(f"{option} {text!r} is not a duration; write for example 60s, 5m or 1h")
    seconds = float(match[1]) * _UNIT_S[match[2] or "s"]
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{option} must be more than zero, not {text!r}")
    return seconds


def parse_executor(text: str) -> ExecutorChoice:
    """An executor by name. Raises OptionError that lists the choices."""
    return chosen("executor", text, EXECUTION)


def executor_of(text: str) -> ExecutorName:
    """The executor that a search looks for placements for. Raises OptionError that lists the choices."""
    return "work-conserving" if (choice := parse_executor(text)) == "auto" else choice


def _metadata(*, argument: str | None = None, read: Callable[[Any], Any] | None = None, recorded: Any = None) -> Any:
    """What is known of a field: the API call's parameter that gives it, where that has another name, what reads its
    text, and the type as which a run folder records it; a resumed search may not differ in it."""
    return {"argument": argument, "read": read, "recorded": recorded}


@dataclass(frozen=True)
class SearchOptions:
    """What every search takes. Raises OptionError for a value outside its range."""

    method: str = field(default="auto", metadata=_metadata(recorded=str))
    objective: Objective = field(default=LATENCY, metadata=_metadata(read=find_objective, recorded=str))
    budget_s: float = field(default=60.0, metadata=_metadata(argument="budget", read=parse_duration))
    max_evaluations: int | None = None
    seed: int = field(default=0, metadata=_metadata(recorded=int))
    preset: str = field(default="default", metadata=_metadata(recorded=str))
    changes: Mapping[str, str] = field(default_factory=dict, metadata=_metadata(recorded=dict[str, str]))
    workers: str | None = None
    """What computes parts of the search in other processes, as ``check_workers`` takes it."""
    num_threads: int = field(default_factory=usable_cpus)
    """Of methods that compute with several."""

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise OptionError(f"the budget must be more than zero, not {self.budget_s:g} s")
        if self.workers is not None:
            check_workers(self.workers)
        check_seed(self.seed)
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise OptionError(f"--max-evaluations must be at least 1, not {self.max_evaluations}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The options that arguments of an API call give; others are left out. Raises OptionError for a wrong text."""
        found = {}
        for each in fields(cls):
            argument, read = each.metadata.get("argument") or each.name, each.metadata.get("read")
            if argument in given:
                found[each.name] = read(given[argument]) if read is not None else given[argument]
        return cls(**found)

    @property
    def budget(self) -> Budget:
        """What the search may spend."""
        return Budget(self.budget_s, np.inf if self.max_evaluations is None else self.max_evaluations)

    def placer(self, *, is_cheap: bool = True) -> Placer[Any]:
        """The method with its hyper-parameters, as ``make_placer`` gives it. Raises OptionError for wrong ones."""
        return make_placer(self.method, self.preset, self.changes, is_cheap=is_cheap)


@dataclass(frozen=True)
class SolveOptions(SearchOptions):
    """What a search over a problem file may spend, and how its placements are judged."""

    budget_s: float = field(default=10.0, metadata=_metadata(argument="budget", read=parse_duration))
    semantics: Semantics = field(default_factory=Semantics)
    start: Plan | None = None
    """A plan over ops, which is evaluated first, so that the answer is not worse."""
    pins: tuple[Pin, ...] = field(default=(), metadata=_metadata(read=parse_pins))
    memory_bytes: Mapping[str, float] = field(
        default_factory=dict, metadata=_metadata(argument="memory", read=parse_memory)
    )
    """Limits by device, in place of the problem's own."""


@dataclass(frozen=True)
class PlaceOptions(SearchOptions):
    """Everything ``hsdag place`` takes, beside the model."""

    devices: str | None = field(
        default=None,
        metadata=_metadata(read=lambda given: given if given is None or isinstance(given, str) else ",".join(given)),
    )
    partition_cpu: int | None = None
    executor: ExecutorChoice = field(default="auto", metadata=_metadata(read=parse_executor, recorded=str))
    reward: str | None = field(default=None, metadata=_metadata(recorded=str))
    fresh: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict, metadata=_metadata(argument="shape", read=_shapes)
    )
    inputs: Path | None = field(
        default=None, metadata=_metadata(read=lambda given: given if given is None else Path(given))
    )
    scenarios: tuple[Scenario, ...] = ()
    memory_bytes: Mapping[str, float] = field(
        default_factory=dict, metadata=_metadata(argument="memory", read=parse_memory, recorded=dict[str, float])
    )
    pins: tuple[Pin, ...] = field(default=(), metadata=_metadata(read=parse_pins, recorded=tuple[str, ...]))
    precision: str | None = field(default=None, metadata=_metadata(argument="infer_precision"))
    """A hint for all devices; ANY_PRECISION for whichever is fastest and computes what the reference does."""
    candidate_limit_s: float = field(
        default=120.0,
        metadata=_metadata(argument="candidate_limit", read=partial(parse_duration, option="--candidate-limit")),
    )
    reference: ReferenceName = field(
        default="cpu",
        metadata=_metadata(read=lambda given: chosen("reference", given, REFERENCES), recorded=str | None),
    )
    max_difference: float | None = field(default=None, metadata=_metadata(recorded=float | None))
    """Limit of the answer: by how much its outputs may differ from the reference's, over the largest value."""
    finalists: int = 3
    start: Placement | None = None
    """A placement, such as the one that serves at present, that the answer must not be slower than."""
    protocol: Protocol = field(default_factory=Protocol)
    arguments: tuple[str, ...] | None = None
    """The words of a command line that asks for the same, without the model; None where none can."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.candidate_limit_s > 0:
            raise OptionError(f"the time limit per candidate must be more than zero, not {self.candidate_limit_s:g} s")
        if self.max_difference is not None and not 0 <= self.max_difference < np.inf:
            raise OptionError(f"--max-difference must be a number and not negative, not {self.max_difference:g}")
        if self.reward is not None:
            chosen("reward", self.reward, REWARDS)
        parse_executor(self.executor)
        if self.memory_bytes and self.resolved_reward == "measured":
            raise OptionError("--memory needs a search that simulates: choose --reward hybrid or simulated")

    @property
    def search_executor(self) -> ExecutorName:
        """What the search looks for placements for."""
        return executor_of(self.executor)

    @property
    def semantics(self) -> Semantics:
        """What the executor's runs are like."""
        return Semantics(execution=EXECUTION[self.executor])

    @property
    def resolved_reward(self) -> str:
        """The requested reward, or that of the method's preset."""
        return self.reward or self.chosen_preset.reward

    @property
    def chosen_preset(self) -> Preset[Any]:
        """The method's preset. Raises OptionError for names that are unknown."""
        return find_preset(self.method, self.preset)

    def record(self) -> dict[str, Any]:
        """The options that a run folder records, as values of JSON; the reference counts where outputs are limited."""
        found = {name: _plain(getattr(self, name)) for name in recorded_options()}
        reference = None if self.max_difference is None else self.reference
        return found | {"reward": self.resolved_reward, "reference": reference}

    def check(self) -> None:
        """Raise OptionError for what the method cannot do, before any work is done for it."""
        self.semantics.check(self.objective)
        if self.objective.counts_memory and self.resolved_reward == "measured":
            raise OptionError(
                f"--objective {self.objective.name} needs a search that simulates: choose --reward hybrid or simulated"
            )
        if Quantity.ENERGY in self.objective.quantities:
            EnergyCounters.find()
        placer = self.placer(is_cheap=False)
        placer.check_request(self.objective, self.semantics, has_costs=self.resolved_reward != "measured")


LIMITS = ("pins", "memory_bytes", "max_difference")
"""Options of ``place`` that limit the answer."""

FLAGS = {"settings": "--set", "pins": "--pin", "inputs": "--input", "memory_bytes": "--memory"}
"""Options of the command line whose names are not those of the fields or parameters."""


def flag(name: str) -> str:
    """The option of the command line for a field or a parameter."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def recorded_options() -> dict[str, tuple[Any, Any]]:
    """The type, and the default, of each option of ``place`` that a run folder records, as values of JSON."""
    default = PlaceOptions()
    recorded = {each.name: each.metadata.get("recorded") for each in fields(PlaceOptions)}
    return {name: (kind, _plain(getattr(default, name))) for name, kind in recorded.items() if kind is not None}


def _plain(value: Any) -> Any:
    """An option's value as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return tuple(each.text for each in value)
    return value.name if isinstance(value, Objective) else value


def command_words(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Keyword arguments of ``hsdag.place`` that are not its ``defaults`` as words of a command line.

    None where an argument has no text, such as a placement in memory.
    """
    words: list[str] = []
    for name, value in given.items():
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
        for each in value if isinstance(value, list | tuple) else (value,):
            words += [flag(name), str(each)]
    return tuple(words)
