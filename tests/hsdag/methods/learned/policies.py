"""Generators by seed, and a policy file made in a moment: two rules near HEFT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hsdag.methods.lists.rules import METHOD, WEIGHTS, changed
from hsdag.scoring.policy_file import write_policy
from hsdag.training.rules import first_rule


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def write_small_policy(path: Path, **card: object) -> Path:
    """Write it, with some of its card changed."""
    rules = changed(np.array([first_rule(), first_rule(ahead=1.0)]), 0.3, np.random.default_rng(0))
    write_policy(path, {WEIGHTS: rules}, {"method": METHOD, **card})
    return path
