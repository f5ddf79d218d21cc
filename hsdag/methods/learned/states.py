"""Stored states of a training: a description of what was trained, and a check that a search can resume from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from hsdag.base.errors import SearchError

State: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""All that is needed to resume a training: tensors by name, and JSON values by name."""

STATES = 6
"""Version of the format of stored states; a state of another version is refused."""


def described(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a method with options that is stored with a state, as JSON values by name."""
    return {"states": STATES, "method": method, "config": json.loads(json.dumps(dict(options)))}


def check_same(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Check that a search can resume from a stored state, by descriptions as returned by ``described``.

    Raises SearchError if the methods, their options or the versions of the format differ.
    """
    method = wanted["method"]
    if stored.get("method") != method:
        raise SearchError(f"the stored state is of method {stored.get('method')!r}, not {method!r}; start anew")
    if stored.get("states") != STATES:
        raise SearchError("the stored state is that of another version of hsdag; start anew")
    before, now = stored["config"], wanted["config"]
    if changed := sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k)):
        raise SearchError(
            f"the stored state was made with other options of {method} ({', '.join(changed)}); "
            "resume with the same ones or start anew"
        )
