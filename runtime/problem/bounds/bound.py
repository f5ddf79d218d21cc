"""Bound: a value that no plan is below, and what proves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """No plan has a smaller value; ``argument`` completes 'proven by ...'."""

    value_s: float
    argument: str


def largest(*bounds: Bound | None) -> Bound:
    """The largest of the bounds that there are, of equal ones the first. Raises ValueError where there is none."""
    return max((bound for bound in bounds if bound is not None), key=lambda bound: bound.value_s)
