"""Generators by seed, and a policy file made in a moment: two rules near HEFT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hsdag.commands.train.rules import first_rule
from hsdag.methods.lists.rules import METHOD, WEIGHTS, changed
from hsdag.methods.policy_file import write_policy


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write_small_policy(path: Path, **card: object) -> Path:
    """Write it, with some of its card changed."""
    rules = changed(np.array([first_rule(), first_rule(ahead=1.0)]), 0.3, np.random.default_rng(0))
    write_policy(path, {WEIGHTS: rules}, {"method": METHOD, **card})
    return path
