"""Snapshots: optimiser and elites as named tensors, so that a search can go on exactly where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hsdag.ir.errors import SearchError
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.parsing import Level, Parse
from hsdag.learning.hsdag.policy import Draw, Experience, Situation
from hsdag.learning.hsdag.topology import Topology

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
NO_SEED = -1


def optimiser_tensors(optimiser: torch.optim.Adam, policy: nn.Module) -> dict[str, torch.Tensor]:
    """Adam's moments and step counts as ``adam.<moment>.<parameter>``."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in policy.named_parameters():
        for moment, value in optimiser.state.get(parameter, {}).items():
            tensors[f"adam.{moment}.{name}"] = value.detach().clone()
    return tensors


def load_optimiser(optimiser: torch.optim.Adam, policy: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Take over the moments that ``optimiser_tensors`` gave."""
    for name, parameter in policy.named_parameters():
        if f"adam.step.{name}" in tensors:
            optimiser.state[parameter] = {m: tensors[f"adam.{m}.{name}"].clone() for m in MOMENTS}


def elites_to_tensors(elites: Sequence[Experience]) -> dict[str, torch.Tensor]:
    """Experiences as ``elite.<i>.<field>``."""
    tensors: dict[str, torch.Tensor] = {}
    for i, elite in enumerate(elites):
        prefix, draw = f"elite.{i}.", elite.draw
        seed = draw.situation.dropout_seed
        tensors[prefix + "latency_s"] = torch.tensor(elite.value, dtype=torch.float64)
        tensors[prefix + "step"] = torch.tensor(elite.step)
        tensors[prefix + "seed"] = torch.tensor(NO_SEED if seed is None else seed)
        tensors[prefix + "group_devices"] = draw.group_devices.clone()
        if draw.situation.state is not None:
            tensors[prefix + "state"] = draw.situation.state.clone()
        for depth, level in enumerate(draw.parse.levels):
            tensors[f"{prefix}nominated.{depth}"] = torch.tensor(level.nominated)
            tensors[f"{prefix}kept.{depth}"] = torch.tensor(level.kept.astype(np.uint8))
    return tensors


def elites_from_tensors(tensors: Mapping[str, torch.Tensor], num_elites: int, topology: Topology) -> list[Experience]:
    """The experiences that ``elites_to_tensors`` gave, groups rebuilt on ``topology``."""
    elites: list[Experience] = []
    for i in range(num_elites):
        prefix = f"elite.{i}."
        seed = int(tensors[prefix + "seed"])
        situation = Situation(tensors.get(prefix + "state"), None if seed == NO_SEED else seed)
        levels: list[Level] = []
        at = topology
        while f"{prefix}nominated.{len(levels)}" in tensors:
            nominated = tensors[f"{prefix}nominated.{len(levels)}"].numpy()
            kept = tensors[f"{prefix}kept.{len(levels)}"].numpy().astype(np.bool_)
            levels.append(Level(at, nominated, kept))
            at = at.quotient(levels[-1].partition)
        draw = Draw(situation, Parse(tuple(levels)), tensors[prefix + "group_devices"])
        elites.append(Experience(draw, float(tensors[prefix + "latency_s"]), int(tensors[prefix + "step"])))
    return elites


def check_stored(config: HsdagConfig, state: Mapping[str, Any]) -> None:
    """Raise SearchError unless the stored state was written by HSDAG under the same options."""
    if state.get("method") != "hsdag":
        raise SearchError(f"the stored search is of method {state.get('method')!r}, not 'hsdag'; start a new one")
    stored, wanted = dict(state.get("config", {})), json.loads(json.dumps(config.as_dict()))
    changed = sorted(k for k in stored.keys() | wanted.keys() if stored.get(k) != wanted.get(k))
    if changed:
        raise SearchError(
            f"the stored search ran with other HSDAG options ({', '.join(changed)}); "
            "resume with the same ones or start a new search"
        )
