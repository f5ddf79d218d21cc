"""Snapshots: what training needs as named tensors, so that it goes on exactly where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hsdag.ir.errors import SearchError
from hsdag.learning.options import TrainingOptions

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
GONE = {"messages_each_step": False, "levels": 1}
"""Options of earlier versions that are no more, and the values that what is left stands for."""


def learner_tensors(
    network: nn.Module, optimiser: torch.optim.Adam, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Weights as ``policy.<parameter>``, Adam's moments as ``adam.<moment>.<parameter>``, and the generator's state."""
    tensors = {f"policy.{name}": t.detach().clone() for name, t in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        for moment, value in optimiser.state.get(parameter, {}).items():
            tensors[f"adam.{moment}.{name}"] = value.detach().clone()
    return {**tensors, "generator": generator.get_state()}


def load_learner(
    network: nn.Module,
    optimiser: torch.optim.Adam,
    generator: torch.Generator,
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Take over what ``learner_tensors`` gave."""
    network.load_state_dict({k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")})
    for name, parameter in network.named_parameters():
        if f"adam.step.{name}" in tensors:
            optimiser.state[parameter] = {m: tensors[f"adam.{m}.{name}"].clone() for m in MOMENTS}
    generator.set_state(tensors["generator"])


def check_stored(method: str, options: TrainingOptions, state: Mapping[str, Any]) -> None:
    """Raise SearchError unless the stored state was written by the method under the same options."""
    older = type(options)().as_dict()  # older states lack options that had no effect yet
    check_same(method, options.as_dict(), {**state, "config": older | without_gone(state.get("config", {}))})


def check_same(method: str, options: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise SearchError unless the stored state is of the method under the same options, JSON values by name."""
    if state.get("method") != method:
        raise SearchError(f"the stored state is of method {state.get('method')!r}, not {method!r}; start anew")
    stored, wanted = dict(state.get("config", {})), json.loads(json.dumps(dict(options)))
    changed = sorted(k for k in stored.keys() | wanted.keys() if stored.get(k) != wanted.get(k))
    if changed:
        raise SearchError(
            f"the stored state was made with other options of {method} ({', '.join(changed)}); "
            "resume with the same ones or start anew"
        )


def without_gone(options: Mapping[str, Any]) -> dict[str, Any]:
    """Stored options without those of earlier versions that make no difference."""
    return {name: value for name, value in options.items() if name not in GONE or value != GONE[name]}
