"""A policy file for tests, made in a moment: two rules near HEFT, and a parsing network that likes large results."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hsdag.methods.lists.parsing import NUM_INPUTS, Layer, layer_weights
from hsdag.methods.lists.rules import METHOD, WEIGHTS, changed
from hsdag.scoring.policy_file import write_policy
from hsdag.training.rules import first_rule


def write_small_policy(path: Path, **card: object) -> Path:
    """Write it, with some of its card changed."""
    layer = Layer(np.eye(NUM_INPUTS, 1), np.array([-1.0]))
    rules = changed(np.array([first_rule(0), first_rule(2)]), 0.3, np.random.default_rng(0))
    write_policy(path, {WEIGHTS: rules} | layer_weights([layer]), {"method": METHOD, **card})
    return path
