"""A policy file for tests, made in a moment: untrained networks that decide nearly as HEFT does."""

from __future__ import annotations

from pathlib import Path

import torch

from hsdag.methods.learned.doppler.network import Beginning, DopplerConfig, DualNetwork
from hsdag.methods.learned.doppler.placer import policy_card
from hsdag.scoring.policy_file import write_policy

SMALL = DopplerConfig(width=8, layers=1, begins_as=Beginning.HEFT, logit_range=20.0)


def write_small_policy(path: Path, **card: object) -> Path:
    """Write it, with some of its card changed."""
    network = DualNetwork(SMALL, torch.Generator().manual_seed(0))
    write_policy(path, network.state_dict(), {**policy_card("small", SMALL), **card})
    return path
