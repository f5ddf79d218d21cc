"""Kernels: functions over arrays that numba compiles where it is installed, and the interpreter runs where it is not.

Searches need numba. A deployment, which cuts a placed model once, can do without it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

njit: Any = None
with suppress(ImportError):
    njit = import_module("numba").njit


def kernel(function: F) -> F:
    """Compile a function on its first call, and keep what was compiled where there is a folder for it."""
    if njit is None:
        return function
    compiled: F
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # neither the code's folder nor the user's cache can be written to
        compiled = njit(nogil=True)(function)
    return compiled
