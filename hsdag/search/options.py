"""PlaceOptions: the checked options of a search for a placement."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsdag.ir.errors import OptionError, OutputError
from hsdag.ir.placement import ExecutorName
from hsdag.placers.base import Placer, Preset
from hsdag.placers.registry import find_preset, make_placer
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.simulator import Execution, Semantics

if TYPE_CHECKING:
    from hsdag.runtime.measuring.references import ReferenceName  # not at run time: it loads OpenVINO

EXECUTORS: tuple[ExecutorName, ...] = ("hetero", "work-conserving")
EXECUTION: dict[ExecutorName, Execution] = {
    "hetero": Execution.SEQUENTIAL,
    "work-conserving": Execution.WORK_CONSERVING,
}
REWARDS = ("measured", "simulated", "hybrid")
_DURATION = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class PlaceOptions:
    """Everything ``hsdag place`` takes, beside the model.

    Raises OptionError for a value outside its range.
    """

    devices: str | None = None
    partition_cpu: int | None = None
    method: str = "hsdag"
    preset: str = "default"
    changes: Mapping[str, str] = field(default_factory=dict)
    objective: Objective = LATENCY
    executor: ExecutorName = "hetero"
    reward: str | None = None
    fresh: bool = False
    budget_s: float = 60.0
    max_evaluations: int | None = None
    seed: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Path | None = None
    candidate_limit_s: float = 120.0
    reference: ReferenceName = "cpu"
    tolerance: float | None = None
    finalists: int = 3
    protocol: Protocol = field(default_factory=Protocol)

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise OptionError(f"the budget must be more than zero, not {self.budget_s:g} s")
        if self.max_evaluations is not None and self.max_evaluations < 1:
            raise OptionError(f"--max-evaluations must be at least 1, not {self.max_evaluations}")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"the seed must be between 0 and 2^63 - 1, not {self.seed}")
        if not self.candidate_limit_s > 0:
            raise OptionError(f"the time limit per candidate must be more than zero, not {self.candidate_limit_s:g} s")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise OptionError(f"--tolerance must not be negative, not {self.tolerance:g}")
        parse_executor(self.executor)
        if self.reward is not None and self.reward not in REWARDS:
            raise OptionError(f"unknown reward {self.reward!r}; choose one of {', '.join(REWARDS)}")
        if self.inputs is not None and not self.inputs.is_file():
            raise OptionError(f"no such file: {self.inputs}; --input takes an .npz file with one array per input")

    @property
    def resolved_reward(self) -> str:
        """The requested reward, or that of the method's preset."""
        return self.reward or self.chosen_preset.reward

    @property
    def chosen_preset(self) -> Preset[Any]:
        """The method's preset. Raises OptionError for names that are unknown."""
        return find_preset(self.method, self.preset)

    @property
    def semantics(self) -> Semantics:
        """What the executor's runs are like."""
        return Semantics(execution=EXECUTION[self.executor])

    def placer(self, *, is_cheap: bool) -> Placer[Any]:
        """The method with its hyper-parameters; ``is_cheap`` as in ``Placer.presets``.

        Raises OptionError for names and values that it does not know.
        """
        return make_placer(self.method, self.preset, self.changes, is_cheap=is_cheap)

    def check(self) -> None:
        """Raise OptionError for what the method cannot do, before any work is done for it."""
        self.objective.check(self.semantics)
        placer = self.placer(is_cheap=False)
        placer.check_request(self.objective, self.semantics, has_costs=self.resolved_reward != "measured")


def parse_duration(text: str | float, option: str = "--budget") -> float:
    """Seconds from a number, ``60s``, ``2m`` or ``1h``. Raises OptionError unless it is more than zero."""
    match = _DURATION.fullmatch(str(text).strip().lower())
    if match is None:
        raise OptionError(f"{option} {text!r} is not a duration; write for example 60s, 5m or 1h")
    seconds = float(match[1]) * _UNIT_S[match[2] or "s"]
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{option} must be more than zero, not {text!r}")
    return seconds


def parse_executor(text: str) -> ExecutorName:
    """An executor by name. Raises OptionError that lists the choices."""
    for name in EXECUTORS:
        if text == name:
            return name
    raise OptionError(f"unknown executor {text!r}; choose one of {', '.join(EXECUTORS)}")


def model_files(model: Path, inputs: Path | None = None) -> list[Path]:
    """The files that a command reads a model from: its own, its weights, and its inputs."""
    weights = [model.with_suffix(".bin")] if model.suffix == ".xml" else []
    return [model, *weights, *([inputs] if inputs is not None else [])]


def check_not_model(outputs: Iterable[Path], model: Path, inputs: Path | None = None) -> None:
    """Raise OutputError when writing one of ``outputs`` would replace the model, its weights or its inputs."""
    own = {path.resolve() for path in model_files(model)}
    for path in outputs:
        if path.resolve() in own:
            raise OutputError(f"{path} is the model itself; name another file to write")
        if inputs is not None and path.resolve() == inputs.resolve():
            raise OutputError(f"{path} holds the model's inputs; name another file to write")


def check_writable(path: Path) -> None:
    """Raise OutputError unless a file can be written there, before any work is done for it."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name the file to write")
    if not path.parent.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise OutputError(f"{path} cannot be written: no permission")
