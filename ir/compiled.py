"""How functions are compiled that allocate nothing.

They are built without numba's reference counting (``_nrt``): counting references to the tables at every call took more
than half of the time of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def bare(function: F, **options: Any) -> F:
    """Compile a function that allocates nothing."""
    options = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False, **options}
    compiled: F = numba.njit(**options)(function)
    return compiled


def inlined(function: F) -> F:
    """Compile a function that allocates nothing into its callers."""
    return bare(function, forceinline=True)
