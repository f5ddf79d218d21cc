"""Kernels: functions over arrays that numba compiles if it is installed, and that Python interprets otherwise.

Searches need numba. A deployment, which cuts a placed model once, can do without it. Compiling takes seconds, which
does not pay for a few calls on a small problem: ``run_kernel`` interprets these.

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
"""Environment variable for the number of steps that are interpreted per kernel: 0 compiles all kernels, inf none."""
INTERPRETED_STEPS = 30_000.0
"""Steps per kernel that are interpreted by default; they take about as long as compiling the kernel."""

ZERO: Any = np.int64(0)
NONE: Any = np.int64(-1)
"""Arguments 0 and -1 of compiled functions: for a literal, numba would compile the function once more."""

FROZEN = (bool, int, float, str, tuple, np.generic, np.dtype)
"""Types of constants whose values are compiled into kernels."""

njit: Any = None
Listener: Any = object
with suppress(ImportError):
    njit, Listener = import_module("numba").njit, import_module("numba.core.event").Listener
    settings: Any = import_module("numba.core.config")
    settings._config_fname = os.devnull  # a numba config in the current folder could name code to run
    settings.reload_config()


def bare(function: F, **options: Any) -> F:
    """Compile a function that allocates nothing, on its first call, and cache the code if a folder is writable."""
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
    """A locator that tells numba where to cache the compiled code of a kernel, and when cached code is out of date.

    By default numba looks only at the function's own file, which does not show changes of kernels and constants from
    other files. Here file names contain a stamp of all of them. Cached files of an older release may name a type that
    has moved since, and are not read at all.
    """

    @staticmethod
    def from_function(function: Callable[..., Any], file: str) -> Any:
        """Return a locator of numba's with the stamp; None where no folder can be written to."""
        caching, stamp = import_module("numba.core.caching"), _stamp(function)
        kinds = caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, caching.UserWideCacheLocator
        locators = (kind.from_function(function, file) for kind in kinds)
        locator = next((located for located in locators if located is not None), None)
        if locator is not None:
            locator.get_source_stamp = locator.get_disambiguator = lambda: stamp
        return locator


@cache
def _digest(file: str) -> str:
    return sha256(Path(file).read_bytes()).hexdigest()


@cache
def _stamp(function: Any) -> str:
    """Return a digest of a kernel's file and line, and of the kernels and constants that the file has from others.

    All of the file's count, since a callee of this kernel that uses them may be defined below it.
    """
    function = getattr(function, "py_func", function)
    code, namespace = function.__code__, {k: v for k, v in function.__globals__.items() if not k.startswith("__")}
    kernels = (callee for callee in namespace.values() if hasattr(callee, "py_func"))
    calls = {_stamp(callee) for callee in kernels if callee.py_func.__code__.co_filename != code.co_filename}
    values = sorted(f"{name}={value!r}" for name, value in namespace.items() if isinstance(value, FROZEN))
    parts = (_digest(__file__), _digest(code.co_filename), code.co_firstlineno, sorted(calls), values)
    return sha256(repr(parts).encode()).hexdigest()[:16]


def kernel(function: F) -> F:
    """Compile a function that may allocate arrays."""
    return bare(function, _nrt=True)


def inner(function: F, **options: Any) -> F:
    """Compile a function that allocates nothing and is only called by compiled functions."""
    return bare(function, no_cpython_wrapper=True, **options)


def inlined(function: F) -> F:
    """Compile a function that allocates nothing into its callers, which are compiled functions."""
    return inner(function, forceinline=True)


class _Steps:
    """Steps interpreted so far per kernel, and whether kernels are compiled regardless of their steps."""

    taken: ClassVar[Counter[Callable[..., Any]]] = Counter()
    is_compiling = False


class _CompilationTimeout(Exception):  # noqa: N818 - an expected ending: the interpreter goes on
    """Raised when kernels have used up the time that they may take to compile."""


class _Allowance(Listener):  # type: ignore[misc]  # without numba, of object
    """A listener to numba that counts the seconds spent on compiling, and counts down those that it may still take.

    Each of ``tells`` is called once, when the next kernel is compiled.

    A kernel's compilation begins before those of its callees and ends after them; numba compiles for one thread at a
    time. An exception at a beginning stops the compilation, and an end follows for all that have begun.
    """

    left_s, spent_s = math.inf, 0.0
    depth, begin_s = 0, 0.0
    tells: ClassVar[list[Callable[[], object]]] = []
    is_abandoned = False
    thread = threading.local()  # its ``calls`` counts nested calls of kernels that can be interpreted

    def on_start(self, _: Any) -> None:
        """Note the beginning, or stop compiling if the time is over and the kernel can be interpreted."""
        now_s = time.monotonic()
        if self.depth == 0:
            self.begin_s = now_s
        self.depth += 1
        if now_s - self.begin_s >= self.left_s and getattr(self.thread, "calls", 0) > 0:
            self.is_abandoned = True
            raise _CompilationTimeout
        while self.tells:
            self.tells.pop()()

    def on_end(self, _: Any) -> None:
        """Count the time that a kernel took to compile, with its callees."""
        self.depth -= 1
        if self.depth == 0:
            taken_s = time.monotonic() - self.begin_s
            self.left_s, self.spent_s = self.left_s - taken_s, self.spent_s + taken_s


_allowance = _Allowance()
if njit is not None:
    import_module("numba.core.event").register("numba:compile", _allowance)


@contextmanager
def compiling(*, is_short: bool = False) -> Iterator[None]:
    """Make ``run_kernel`` compile whatever it calls, as many calls are about to follow; no effect if ``is_short``."""
    before, _Steps.is_compiling = _Steps.is_compiling, not is_short
    try:
        yield
    finally:
        _Steps.is_compiling = before


@contextmanager
def compiling_at_most(seconds: float) -> Iterator[None]:
    """Let ``run_kernel`` and ``run_few`` compile kernels for ``seconds`` in all, and interpret the others.

    Within another limit, the smaller one holds. Compiled code is cached, so the next process has more time for the
    rest.
    """
    before, _allowance.left_s = _allowance.left_s, min(seconds, _allowance.left_s)
    try:
        yield
    finally:
        _allowance.left_s = before


@contextmanager
def timed_compiling(tell: Callable[[], object]) -> Iterator[Callable[[], float]]:
    """Call ``tell`` when the first kernel is compiled within the context.

    Yields a function that returns the seconds that compiling has taken so far.
    """
    before_s = _allowance.spent_s
    _allowance.tells.append(tell)
    try:
        yield lambda: _allowance.spent_s - before_s
    finally:
        if tell in _allowance.tells:
            _allowance.tells.remove(tell)


def compiled_in_time(prepare: Callable[[], object]) -> bool:
    """Call a function whose only effect is to compile kernels, and return whether there was time for all of them.

    The others are compiled when they are called, or by the next process.
    """
    return _in_time(prepare)[0]


def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the value of a compiled kernel, or of the interpreter where compiling would take too long."""
    is_done, value = _in_time(function, *arguments)
    return value if is_done else interpret(function, *arguments)


def _in_time(function: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
    """Call a function; return whether there was time to compile its kernels, and its value. Other errors are raised."""
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
    """Return whether ``run_kernel`` interprets a kernel that has taken this number of steps."""
    return steps <= float(os.environ.get(INTERPRETED_VARIABLE, INTERPRETED_STEPS))


def run_kernel(function: Callable[..., Any], steps: float, *arguments: Any) -> Any:
    """Call a kernel that takes about ``steps``, in units of the time to simulate one op.

    It is interpreted until all its calls together have taken many steps; then it is compiled. Both give the same
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
    """Call a kernel of which a search makes few calls, with ``steps`` in all; see ``run_kernel``.

    On small problems it is interpreted even if the search compiles its kernels beforehand.
    """
    is_small = hasattr(function, "py_func") and is_interpreted(steps)
    return interpret(function, *arguments) if is_small or njit is None else _called(function, *arguments)


def interpret(function: Callable[..., Any], *arguments: Any) -> Any:
    """Interpret a kernel, which may be one that otherwise only compiled functions call."""
    with np.errstate(all="ignore"):
        return interpreted(function)(*map(_readable, arguments))


@cache
def interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel as plain Python, as are all kernels that it calls."""
    plain = getattr(function, "py_func", function)
    names = dict(plain.__globals__)
    for name in plain.__code__.co_names:
        if hasattr(names.get(name), "py_func"):
            names[name] = interpreted(names[name])
    return FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)


@cache
def _with_attributes(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a record type whose fields are attributes: unlike those of ``np.recarray``, whatever their names."""

    def field(name: str) -> property:
        return property(itemgetter(name), lambda record, value: record.__setitem__(name, value))

    return np.dtype((type("Record", (np.void,), {name: field(name) for name in dtype.names or ()}), dtype))


def _readable(argument: Any) -> Any:
    """Return the argument with records whose fields are attributes, as they are in compiled code."""
    if isinstance(argument, np.ndarray) and argument.dtype.names:
        return argument.view(_with_attributes(argument.dtype))
    if isinstance(argument, tuple):
        values = map(_readable, argument)
        return type(argument)(*values) if hasattr(argument, "_fields") else tuple(values)
    return argument
