"""Files of tensors, as safetensors: policies for reuse with a card, and states to resume from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hsdag.ir.errors import FileFormatError
from hsdag.ir.files import parse_json, write_atomically

FORMAT, VERSION = "hsdag-policy", 1
NO_NUMBERS = (TypeError, AttributeError)
"""What safetensors raises for types of numbers that NumPy does not have, bfloat16 and float8."""


@dataclass(frozen=True, eq=False)
class PolicyFile:
    """Weights by name and their card: method, options, families, problems, updates, seed and the last figures."""

    weights: Mapping[str, NDArray[Any]]
    card: Mapping[str, Any]


def write_policy(path: Path, weights: Mapping[str, ArrayLike], card: Mapping[str, Any]) -> None:
    """Write a policy, atomically. Raises OutputError when that fails."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **card}, allow_nan=False)
    data = save({name: np.ascontiguousarray(tensor) for name, tensor in weights.items()}, {"card": text})
    write_atomically(path, data)


def policy_method(path: Path) -> str | None:
    """The method that the card of a policy file names. Raises FileFormatError for any other file."""
    method = _card(path, {}).get("method")
    return None if method is None else str(method)


def read_policy(path: Path, method: str) -> PolicyFile:
    """A policy file of a method, or of none that it names, whose weights are finite.

    Raises FileFormatError for any other file.
    """
    weights: dict[str, NDArray[Any]] = {}
    card = _card(path, weights)
    if card.get("method", method) != method:
        raise FileFormatError(f"{path} is a policy of method {card['method']!r}, not of {method!r}")
    broken = [name for name, tensor in weights.items() if not np.isfinite(tensor).all()]
    if broken:
        raise FileFormatError(
            f"the weights {', '.join(broken)} of {path} are not finite; write others with 'hsdag train'"
        )
    return PolicyFile(weights, card)


def _card(path: Path, weights: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """The card of a policy file, whose weights go into ``weights``."""
    try:
        with safe_open(path, framework="np") as stored:
            card = parse_json((stored.metadata() or {}).get("card", "{}"), f"the card of {path}")
            weights |= {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError, *NO_NUMBERS) as error:
        raise FileFormatError(f"{path} is not a policy file ({error}); write one with 'hsdag train'") from error
    odd = [name for name, tensor in weights.items() if tensor.dtype.kind != "f"]
    if odd:  # such as bfloat16, once another library has taught it to NumPy
        reason = f"{odd[0]} has numbers of type {weights[odd[0]].dtype}"
        raise FileFormatError(f"{path} is not a policy file ({reason}); write one with 'hsdag train'")
    if not isinstance(card, dict):
        raise FileFormatError(f"the card of {path} is no JSON object but {card!r}; write one with 'hsdag train'")
    if card.get("format") != FORMAT or card.get("version") != VERSION:
        found = f"{card.get('format')!r} version {card.get('version')!r}"
        raise FileFormatError(f"{path} is {found}, not {FORMAT!r} version {VERSION}; write one with 'hsdag train'")
    return card


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
