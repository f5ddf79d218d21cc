"""Read and write safetensors files: trained policies with a card, and states from which a run resumes."""

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

from hsdag.base.errors import FileFormatError, option
from hsdag.base.files import parse_json, write_atomically

if TYPE_CHECKING:
    import torch

FORMAT, VERSION = "hsdag-policy", 1
"""Format and version that the card of a policy file must have."""
SHIPPED = "shipped"
"""Name of the policies that come with a release, one for each method that is trained on many problems."""


@dataclass(frozen=True, eq=False)
class PolicyFile:
    """The contents of a policy file.

    Attributes:
        weights: Arrays of weights by name.
        card: Method, options, family, problems, updates, seed and results of the training.
    """

    weights: Mapping[str, NDArray[Any]]
    card: Mapping[str, Any]


def write_policy(path: Path, weights: Mapping[str, ArrayLike], card: Mapping[str, Any]) -> None:
    """Write a policy file atomically. Raises OutputError if that fails."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **card}, allow_nan=False)
    write_atomically(path, save({name: np.array(array, order="C") for name, array in weights.items()}, {"card": text}))


def shipped_policy(method: str) -> Path:
    """Return the policy file of a method that comes with a release; its card says how it was trained."""
    return Path(__file__).parent / "policies" / f"{method}.safetensors"


def read_policy(path: Path, method: str) -> PolicyFile:
    """Read a policy file of a method; SHIPPED stands for the one that comes with a release.

    Raises FileFormatError if the file is missing or not a policy, if its card names another method, or if weights are
    not finite.
    """
    path = shipped_policy(method) if str(path) == SHIPPED else path
    try:
        weights, metadata = _tensors(path, "np")
    except (SafetensorError, OSError, TypeError, AttributeError) as error:  # the last two for bfloat16 and float8
        raise _no_policy(path, str(error)) from error
    card = parse_json(metadata.get("card", "{}"), f"the card of {path}")
    for name, tensor in weights.items():
        if tensor.dtype.kind != "f":  # for example bfloat16, if another library has registered it with NumPy
            raise _no_policy(path, f"{name} has numbers of type {tensor.dtype}")
    if not isinstance(card, dict) or card.get("format") != FORMAT or card.get("version") != VERSION:
        raise _no_policy(path, f"its card says {str(card)[:99]}, not {FORMAT!r} version {VERSION}")
    if card.get("method", method) != method:
        raise FileFormatError(
            f"{path} is a policy of method {card['method']!r}, not of {method!r}; "
            f"choose {option('method')} {card['method']}"
        )
    if broken := [name for name, tensor in weights.items() if not np.isfinite(tensor).all()]:
        raise _no_policy(path, f"the weights {', '.join(broken)} are not finite")
    return PolicyFile(weights, card)


def _tensors(path: Path, framework: str) -> tuple[dict[str, Any], dict[str, str]]:
    with safe_open(path, framework=framework) as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}, stored.metadata() or {}  # noqa: SIM118


def _no_policy(path: Path, reason: str) -> FileFormatError:
    return FileFormatError(f"{path} is not a policy file ({reason}); write one with 'hsdag train'")


@dataclass(frozen=True)
class StateFile:
    """A checkpoint that keeps the state in one file, replaced atomically."""

    path: Path

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the stored state. Raises OutputError if the file cannot be written."""
        from safetensors.torch import save

        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        write_atomically(self.path, save(contiguous, {"state": json.dumps(dict(state))}))

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Return the stored state; None if there is no file. Raises FileFormatError if the file is damaged."""
        if not self.path.exists():
            return None
        try:
            tensors, metadata = _tensors(self.path, "pt")
            state = parse_json(metadata["state"], "the state")
            if not isinstance(state, dict):
                raise FileFormatError("its state is no JSON object")
        except (SafetensorError, OSError, KeyError, FileFormatError) as error:
            raise FileFormatError(
                f"{self.path} is damaged ({error}); start again without {option('resume')}"
            ) from error
        return tensors, state
