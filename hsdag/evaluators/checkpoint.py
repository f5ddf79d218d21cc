"""Checkpoint: where a method keeps its state, so that a search can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Checkpoint(Protocol):
    """Keeps one state: tensors by name, and a JSON-able mapping."""

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the stored state."""

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The stored state, or None when nothing was stored yet."""
