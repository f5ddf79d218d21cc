"""TrainingState: the file of an interrupted training, which only the same training goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hsdag.evaluators.policy_file import StateFile
from hsdag.ir.errors import SearchError
from hsdag.learning.snapshot import check_same

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrainingState:
    """A checkpoint that holds, beside the state, what it is of: a method and its ``options``, JSON values by name.

    A state has as ``done`` how many updates were made, of which there may be at most ``updates``.
    """

    file: StateFile
    method: str
    options: Mapping[str, Any]
    updates: int

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the stored state. Raises OutputError."""
        self.file.save(tensors, {"method": self.method, "config": self.options, **state})

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The stored state, or None when nothing was stored yet.

        Raises FileFormatError, and SearchError where it is of another training or has made more updates.
        """
        stored = self.file.load()
        if stored is not None:
            check_same(self.method, self.options, stored[1])
            done = stored[1]["done"]
            if done > self.updates:
                raise SearchError(
                    f"the stored training has made {done} updates; --updates has to be at least as many, "
                    f"not {self.updates}"
                )
        return stored
