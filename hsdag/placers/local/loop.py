"""The loop of a local search, compiled: moves are drawn, and kept or undone.

Metropolis' rule at a temperature that falls geometrically; at temperature 0, what is not worse is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hsdag.placers.local.chain import Chain, note_best, restore, settle, uniform
from hsdag.placers.local.moves import draw_move
from hsdag.placers.local.values import keep, load, undo, value_of
from hsdag.runtime.simulator.heaps import bare

ROUNDING = 1e-12
"""Share by which a value may exceed what can be accepted before its computation is cut off."""


@bare
def start(c: Chain, ground: Any) -> None:
    """Compute the value of the chain's plan, which may be a new one."""
    start_with(c, load(ground, c))


@bare
def start_with(c: Chain, value: float) -> None:
    """Take the value of the chain's plan as it was computed."""
    c.state[0].value = value
    if c.state[0].value < c.state[0].best and c.state[0].excess == 0.0:
        note_best(c)


@bare
def propose(c: Chain, ground: Any, num: int) -> None:
    """Make ``num`` proposals, whose values come from ``ground``."""
    for _ in range(num):
        c.state[0].num_proposals += 1
        c.state[0].temperature *= c.state[0].cooling
        draw_move(c)
        if c.state[0].num_changed == 0:
            continue
        limit = c.state[0].value - c.state[0].temperature * np.log(1.0 - uniform(c))
        value = value_of(ground, c, limit * (1.0 + ROUNDING))
        if value <= limit:
            keep(ground, c)
            c.state[0].value = value
            if value < c.state[0].best and c.state[0].excess == 0.0:
                note_best(c)
        else:
            restore(c)
            undo(ground, c)
        settle(c)
