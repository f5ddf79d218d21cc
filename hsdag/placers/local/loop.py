"""The loop of a local search: proposals are drawn, valued, and kept or undone.

Metropolis' rule at a temperature that falls geometrically; at temperature 0, what is not worse is kept. Every kind of
ground, which values come from, has a loop of its own, compiled around its values.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from hsdag.ir.compiled import inlined
from hsdag.placers.local.chain import Chain, note_best, restore, uniform
from hsdag.placers.local.moves import draw_move

ROUNDING = 1e-12
"""Share by which a value may exceed what can be accepted before its computation is cut off."""


@singledispatch
def propose(ground: Any, c: Chain, num: int) -> None:  # noqa: ARG001
    """Make ``num`` proposals, whose values come from ``ground``."""
    raise TypeError(f"no local search has values from a {type(ground).__name__}")


@singledispatch
def value_of(ground: Any, c: Chain) -> float:  # noqa: ARG001
    """The value of a chain's plan, as it is; the excess of memory goes into the chain's state."""
    raise TypeError(f"no local search has values from a {type(ground).__name__}")


def start(ground: Any, c: Chain) -> None:
    """Compute the value of the chain's plan, which may be a new one."""
    c.state["value"] = value_of(ground, c)
    if c.state["value"][0] < c.state["best"][0] and c.state["excess"][0] == 0.0:
        note_best(c)


@inlined
def draw(c: Chain) -> float:
    """Draw a proposal, which may change nothing; the largest value at which it would be kept."""
    c.state[0].num_proposals += 1
    c.state[0].temperature *= c.state[0].cooling
    draw_move(c)
    if c.state[0].num_changed == 0:
        return 0.0
    limit: float = c.state[0].value - c.state[0].temperature * np.log(1.0 - uniform(c))
    return limit


@inlined
def is_kept(c: Chain, value: float, limit: float) -> bool:
    """Keep a proposal up to ``limit``, and else put back the chain's plan."""
    if value > limit:
        restore(c)
        return False
    c.state[0].value = value
    if value < c.state[0].best and c.state[0].excess == 0.0:
        note_best(c)
    return True
