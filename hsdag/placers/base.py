"""Placer: a method that searches for placements through an evaluator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hsdag.evaluators.base import Evaluator
from hsdag.ir.graph import IntArray
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.simulator import Semantics


@dataclass(frozen=True)
class PlacerSettings:
    """What a placer is made with.

    ``is_cheap`` says that evaluations are simulated, so that thousands can be had; ``semantics`` is what placements
    run under (HETERO's is sequential); ``budget_s`` is for methods that do not ask the evaluator all the time.
    """

    preset: str = "default"
    seed: int = 0
    is_cheap: bool = False
    semantics: Semantics = Semantics()  # noqa: RUF009 - frozen
    budget_s: float = float("inf")


class Checkpoint(Protocol):
    """Where a placer keeps its state, so that a search can be resumed."""

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the stored state: tensors by name, and a JSON-able mapping."""

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The stored state, or None when nothing was stored yet."""


class Placer(ABC):
    """A placement method.

    Anytime: the best placement is kept by the evaluator, which ends the search with SearchStopped.
    """

    @abstractmethod
    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:
        """Search until the method converges, and return the best placement [U] it evaluated.

        Raises SearchStopped when the evaluator's budget is spent first.
        """
