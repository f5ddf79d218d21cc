"""How functions are compiled that allocate nothing.

They are built without numba's reference counting (``_nrt``): counting references to the tables at every call took more
than half of the time of a simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.caching import IndexDataCacheFile

ZERO: Any = np.int64(0)
"""For arguments of compiled functions: for a literal 0, numba would compile them once more."""

F = TypeVar("F", bound=Callable[..., Any])


def bare(function: F, **options: Any) -> F:
    """Compile a function that allocates nothing."""
    options = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False, **options}
    compiled: Any = numba.njit(**options)(function)
    file = getattr(compiled._cache, "_cache_file", None)
    if file is not None:
        file.__class__ = _Index
    result: F = compiled
    return result


def allocating(function: F) -> F:
    """Compile a function that allocates arrays."""
    return bare(function, _nrt=True)


class _Index(IndexDataCacheFile):
    """What was compiled before. Numba reads the whole index before it sees that it is of an older file.

    One of another release may name a type that has moved since: then nothing was compiled before.
    """

    def _load_index(self) -> dict[Any, str]:
        try:
            found: dict[Any, str] = super()._load_index()  # type: ignore[no-untyped-call]
        except (ImportError, AttributeError):
            return {}
        return found


def inner(function: F, **options: Any) -> F:
    """Compile a function that allocates nothing and that only compiled functions call."""
    return bare(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def inlined(function: F) -> F:
    """Compile a function that allocates nothing into its callers, which are compiled functions."""
    return inner(function, forceinline=True)


def merged(function: F) -> F:
    """Write a function out in its only caller before that is compiled: a call would have it optimised twice."""
    return bare(function, inline="always")
