"""Loading OpenVINO's plugins so that the calling thread keeps its own stack for signals.

On Linux, a CPU plugin gives the thread that loads it an alternate signal stack. When the plugin is unloaded it frees
that stack, and puts the thread's former one back only if its own is still in use (2026.4.1). Where the plugins of two
cores, or of two devices of one core, are unloaded in any order but the reverse, the thread is left with a stack that
has been freed, and the next Ctrl-C ends the process with a segmentation fault. A thread that ends once the plugins are
loaded takes its signal stack with it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def loads_plugins(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function in a thread of its own, for functions after which plugins stay loaded."""

    @wraps(function)
    def in_its_own_thread(*args: P.args, **kwargs: P.kwargs) -> R:
        with ThreadPoolExecutor(1, "hsdag-plugins") as thread:
            return thread.submit(function, *args, **kwargs).result()

    return in_its_own_thread
