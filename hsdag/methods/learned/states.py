"""Stored states of training: what they are of, and whether a search can go on from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from hsdag.base.errors import SearchError

State: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""What has to be kept to go on: tensors by name, and JSON values."""

STATES = 4
"""The version of stored states."""


def described(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a state is of, kept with it: a method under options, JSON values by name."""
    return {"states": STATES, "method": method, "config": json.loads(json.dumps(dict(options)))}


def check_same(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Raise SearchError unless a stored state is of what is ``wanted``, both as ``described``."""
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
