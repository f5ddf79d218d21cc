"""Kernels: functions over arrays that numba compiles where it is installed, and the interpreter runs where it is not.

Searches need numba. A deployment, which cuts a placed model once, can do without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

try:
    from numba import njit
except ImportError:
    njit = None


def kernel(function: F) -> F:
    """Compile a function on its first call, and keep what was compiled."""
    if njit is None:
        return function
    compiled: F = njit(cache=True, nogil=True)(function)
    return compiled
