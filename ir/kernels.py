"""Kernels: functions over arrays that numba compiles where it is installed, and the interpreter runs where it is not.

Searches need numba. A deployment, which cuts a placed model once, can do without it. Compiling takes seconds, which a
few calls on a small problem are not worth: ``run`` leaves these to the interpreter.

Kernels that allocate nothing are built without numba's reference counting (``_nrt``): counting references to the tables
at every call took more than half of the time of a simulation.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

INTERPRETED_VARIABLE = "HSDAG_INTERPRETED_STEPS"
"""Environment variable with the steps that each kernel is interpreted for: 0 has all compiled, inf none."""
INTERPRETED_STEPS = 30_000.0
"""By default, as many as take the interpreter about as long as compiling would."""

ZERO: Any = np.int64(0)
NONE: Any = np.int64(-1)
"""For arguments of compiled functions: for a literal 0 or -1, numba would compile them once more."""

FROZEN = (bool, int, float, str, tuple, np.generic, np.dtype)
"""Types of constants whose values are compiled into kernels."""

njit: Any = None
Listener: Any = object
with suppress(ImportError):
    njit, Listener = import_module("numba").njit, import_module("numba.core.event").Listener
    settings: Any = import_module("numba.core.config")
    settings._config_fname = os.devnull  # else a file of the current folder, which may name one for code that is run
    settings.reload_config()


def bare(function: F, **options: Any) -> F:
    """Compile a function that allocates nothing, on its first call; what was compiled is kept where a folder can be."""
    if njit is None:
        return function
    options = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True, **options}
    config = import_module("numba").config
    before, config.CACHE_LOCATOR_CLASSES = config.CACHE_LOCATOR_CLASSES, f"{__name__}.{Locator.__name__}"
    try:
        result: F = njit(cache=True, **options)(function)
    except RuntimeError:  # neither the code's folder nor the user's cache can be written to
        result = njit(**options)(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = before
    return result


class Locator:
    """Says to numba where the compiled code of a kernel is kept, and by what old code is known.

    That is by default the function's own file, which does not show that a kernel of another file, which was compiled
    into it, or a constant of another file, has changed. Files have the stamp in their names: those of an older release
    may name a type that has moved since, and are not read at all.
    """

    @staticmethod
    def from_function(function: Callable[..., Any], file: str) -> Any:
        """A locator of numba's with the stamp; None where no folder can be written to."""
        caching, stamp = import_module("numba.core.caching"), _stamp(function)
        kinds = caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, caching.UserWideCacheLocator
        found = next(
            (each for each in (kind.from_function(function, file) for kind in kinds) if each is not None), None
        )
        if found is not None:
            found.get_source_stamp = found.get_disambiguator = lambda: stamp
        return found


@cache
def _digest(file: str) -> str:
    return sha256(Path(file).read_bytes()).hexdigest()


@cache
def _stamp(function: Any) -> str:
    """A digest of the files of a kernel and of those that it calls, its place, and the constants that they use."""
    code = getattr(function, "py_func", function).__code__
    named = [getattr(function, "py_func", function).__globals__.get(name) for name in code.co_names]
    calls = sorted(_stamp(each) for each in named if hasattr(each, "py_func"))
    values = [repr(each) for each in named if isinstance(each, FROZEN)]
    parts = (_digest(code.co_filename), code.co_firstlineno, calls, values)
    return sha256(repr(parts).encode()).hexdigest()[:16]


def kernel(function: F) -> F:
    """Compile a function that may allocate arrays."""
    return bare(function, _nrt=True)


def inner(function: F, **options: Any) -> F:
    """Compile a function that allocates nothing and that only compiled functions call."""
    return bare(function, no_cpython_wrapper=True, **options)


def inlined(function: F) -> F:
    """Compile a function that allocates nothing into its callers, which are compiled functions."""
    return inner(function, forceinline=True)


class _Steps:
    """What the interpreter has run of each kernel, and whether kernels are compiled whatever they take."""

    taken: ClassVar[Counter[Callable[..., Any]]] = Counter()
    is_compiling = False


class _OutOfTime(Exception):  # noqa: N818 - an ending we expect: the interpreter goes on
    """Kernels have taken as long to compile as they may."""


class _Allowance(Listener):  # type: ignore[misc]  # where numba is not there, of nothing
    """Seconds that compiling may still take, by what numba tells of the beginning and the end of every function.

    A kernel's begins before those of the kernels that it calls, and ends after them; numba compiles for one thread at a
    time. What is raised at a beginning ends the compiling, and is followed by the end of all that have begun.
    """

    left_s = math.inf
    depth, begin_s = 0, 0.0
    is_abandoned = False
    thread = threading.local()  # with ``calls``, of kernels that the interpreter can run instead

    def on_start(self, _: Any) -> None:
        """Go on, or give up where the time is over and the interpreter can do without."""
        now_s = time.monotonic()
        if self.depth == 0:
            self.begin_s = now_s
        self.depth += 1
        if now_s - self.begin_s >= self.left_s and getattr(self.thread, "calls", 0) > 0:
            self.is_abandoned = True
            raise _OutOfTime

    def on_end(self, _: Any) -> None:
        """Count what a kernel took with all that it calls."""
        self.depth -= 1
        if self.depth == 0:
            self.left_s -= time.monotonic() - self.begin_s


_allowance = _Allowance()
if njit is not None:
    import_module("numba.core.event").register("numba:compile", _allowance)


@contextmanager
def compiling(*, is_short: bool = False) -> Iterator[None]:
    """Inside, ``run`` compiles whatever it calls, for what is about to be called many times; not what ``is_short``."""
    before, _Steps.is_compiling = _Steps.is_compiling, not is_short
    try:
        yield
    finally:
        _Steps.is_compiling = before


@contextmanager
def compiling_at_most(seconds: float) -> Iterator[None]:
    """Inside, ``run`` and ``run_few`` compile kernels for so many seconds, and leave the others to the interpreter.

    Within another limit, the smaller one holds.

    What was compiled is kept, so that the next process has more time for the rest.
    """
    before, _allowance.left_s = _allowance.left_s, min(seconds, _allowance.left_s)
    try:
        yield
    finally:
        _allowance.left_s = before


def compiled_in_time(prepare: Callable[[], object]) -> bool:
    """Call what has kernels compiled, and does nothing else; whether there was time for all of them.

    What is left is compiled when it is called, or by the next process.
    """
    return _in_time(prepare)[0]


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a compiled kernel gives, or the interpreter where compiling it would take too long."""
    is_done, value = _in_time(function, *arguments)
    return value if is_done else interpret(function, *arguments)


def _in_time(function: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Whether there was time to compile what a call has compiled, and what it gives; other errors are raised."""
    calls: int = getattr(_allowance.thread, "calls", 0)
    _allowance.thread.calls = calls + 1
    try:
        return True, function(*arguments)
    except Exception:
        if not _allowance.is_abandoned:
            raise
    finally:
        _allowance.thread.calls = calls
    _allowance.is_abandoned = False
    return False, None


def is_interpreted(steps: float) -> bool:
    """Whether ``run`` leaves so many steps of one kernel to the interpreter."""
    return steps <= float(os.environ.get(INTERPRETED_VARIABLE, INTERPRETED_STEPS))


def run(function: Callable[..., Any], steps: float, *arguments: Any) -> Any:
    """Call a kernel, which takes about so many ``steps``, each of them as much as to simulate one op.

    The interpreter runs it as long as all its calls have taken few steps; then it is compiled. Both give the same
    values. Arrays of records are handed on as views that the interpreter can write to.
    """
    if njit is None or not hasattr(function, "py_func"):
        return function(*arguments)
    if is_interpreted(math.inf) or not (function.signatures or _Steps.is_compiling):  # type: ignore[attr-defined]
        _Steps.taken[function] += steps  # type: ignore[assignment]
        if is_interpreted(_Steps.taken[function]):
            return interpret(function, *arguments)
    return _called(function, *arguments)


def run_few(function: Callable[..., Any], steps: float, *arguments: Any) -> Any:
    """The same for a kernel of which a search makes few calls, of about so many ``steps`` in all.

    Small problems have it interpreted even where a search is compiled beforehand.
    """
    is_small = hasattr(function, "py_func") and is_interpreted(steps)
    return interpret(function, *arguments) if is_small or njit is None else _called(function, *arguments)


def interpret(function: Callable[..., Any], *arguments: Any) -> Any:
    """Have the interpreter run a kernel, which may be one that only compiled functions call."""
    with np.errstate(all="ignore"):
        return interpreted(function)(*map(_readable, arguments))


@cache
def interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel as plain Python, and so all kernels that it calls."""
    plain = getattr(function, "py_func", function)
    names = dict(plain.__globals__)
    for name in plain.__code__.co_names:
        if hasattr(names.get(name), "py_func"):
            names[name] = interpreted(names[name])
    return FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)


@cache
def _with_attributes(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same records, whose fields are attributes: unlike those of ``np.recarray``, whatever their names."""

    def field(name: str) -> property:
        return property(itemgetter(name), lambda record, value: record.__setitem__(name, value))

    return np.dtype((type("Record", (np.void,), {name: field(name) for name in dtype.names or ()}), dtype))


def _readable(argument: Any) -> Any:
    """The argument with records whose fields are attributes, as they are in compiled code."""
    if isinstance(argument, np.ndarray) and argument.dtype.names:
        return argument.view(_with_attributes(argument.dtype))
    if isinstance(argument, tuple):
        values = map(_readable, argument)
        return type(argument)(*values) if hasattr(argument, "_fields") else tuple(values)
    return argument
