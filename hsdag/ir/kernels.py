"""Kernels: functions over arrays that numba compiles where it is installed, and the interpreter runs where it is not.

Searches need numba. A deployment, which cuts a placed model once, can do without it. Compiling takes seconds, which a
few calls on a small problem are not worth: ``run`` leaves these to the interpreter.

Kernels that allocate nothing are built without numba's reference counting (``_nrt``): counting references to the tables
at every call took more than half of the time of a simulation.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from operator import itemgetter
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
with suppress(ImportError):
    njit = import_module("numba").njit


def bare(function: F, **options: Any) -> F:
    """Compile a function that allocates nothing, on its first call; what was compiled is kept where a folder can be."""
    if njit is None:
        return function
    options = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True, **options}
    compiled: Any
    try:
        compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # neither the code's folder nor the user's cache can be written to
        compiled = njit(**options)(function)
    file = _index_of(compiled)
    if file is not None:
        file._load_index = _tolerant(file._load_index)
        named = [function.__globals__.get(name) for name in function.__code__.co_names]
        stamps = {each._source_stamp for each in map(_index_of, named) if each is not None} - {file._source_stamp}
        values = [repr(each) for each in named if isinstance(each, FROZEN)]
        file._source_stamp = (file._source_stamp, *sorted(stamps, key=repr), *values)
    result: F = compiled
    return result


def _index_of(function: Any) -> Any:
    """What numba knows of the compiled code of a kernel on disk; None where it is not a kernel, or not kept.

    Numba's stamp, by which it knows old code, is that of the function's own file: it does not see that a kernel of
    another file, which was compiled into it, or a constant of another file, has changed. So each stamp has those of
    the kernels that are called, and the constants.
    """
    return getattr(getattr(function, "_cache", None), "_cache_file", None)


def _tolerant(load_index: Callable[[], dict[Any, str]]) -> Callable[[], dict[Any, str]]:
    """Numba reads the whole index of what was compiled before it sees that it is of an older file.

    One of another release may name a type that has moved since: then nothing was compiled before.
    """

    def load() -> dict[Any, str]:
        try:
            return load_index()
        except (ImportError, AttributeError):
            return {}

    return load


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


@contextmanager
def compiling(*, is_short: bool = False) -> Iterator[None]:
    """Inside, ``run`` compiles whatever it calls, for what is about to be called many times; not what ``is_short``."""
    before, _Steps.is_compiling = _Steps.is_compiling, not is_short
    try:
        yield
    finally:
        _Steps.is_compiling = before


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
    return function(*arguments)


def run_few(function: Callable[..., Any], steps: float, *arguments: Any) -> Any:
    """The same for a kernel of which a search makes few calls, of about so many ``steps`` in all.

    Small problems have it interpreted even where a search is compiled beforehand.
    """
    is_small = hasattr(function, "py_func") and is_interpreted(steps)
    return interpret(function, *arguments) if is_small else function(*arguments)


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
