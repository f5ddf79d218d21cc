"""StateFile: a checkpoint on disk, as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from hsdag.ir.errors import FileFormatError
from hsdag.ir.placement import parse_json, write_atomically

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StateFile:
    """A checkpoint in one file, replaced atomically."""

    path: Path

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the stored state. Raises OutputError."""
        from safetensors.torch import save

        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        write_atomically(self.path, save(contiguous, {"state": json.dumps(dict(state))}))

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The stored state, or None when nothing was stored yet. Raises FileFormatError."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
                state = parse_json((file.metadata() or {})["state"], "the state")
        except (SafetensorError, OSError, KeyError, FileFormatError) as error:
            raise FileFormatError(f"{self.path} is damaged ({error}); start again without --resume") from error
        if not isinstance(state, dict):
            raise FileFormatError(f"{self.path} is damaged (its state is no JSON object); start again without --resume")
        return tensors, state
