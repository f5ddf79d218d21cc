"""The exception tree of hsdag, and checks of names and arguments.

HsdagError                      every mistake a user can make; one line, exit code 2 at the command line
├── ModelError                  a model that cannot be read, or has no fixed shapes
├── DeviceError                 a device that is unknown, malformed or does not load
├── PlacementError              a placement that is incomplete, for another model, or for absent devices
├── FileFormatError             a JSON document that breaks its format; names the path inside the document
├── OptionError                 an option with a value outside its range
├── OutputError                 a file that cannot be written
├── SearchError                 a search that cannot start, go on or be resumed
└── ExecutionError              an inference that failed, was cancelled or took too long; names the op and its device

Defects of hsdag are ordinary Python exceptions and end with exit code 1.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

N = TypeVar("N", bound=str)
P = ParamSpec("P")
R = TypeVar("R")


class HsdagError(Exception):
    """Base of every error that a user can cause and put right. Its message is one line, even if it quotes several.

    >>> import hsdag
    >>> try:
    ...     hsdag.Placement.load("missing.json")
    ... except hsdag.HsdagError as error:
    ...     print(error)
    no such file: missing.json
    """

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class ModelError(HsdagError):
    """A model that cannot be read, is not a model, or has shapes that are not fixed."""


class DeviceError(HsdagError):
    """A device that is unknown, malformed, or fails to load."""


class PlacementError(HsdagError):
    """A placement that is incomplete, belongs to another model, or names absent devices."""


class FileFormatError(HsdagError):
    """A JSON document that breaks its format."""


class OptionError(HsdagError):
    """An option whose value is outside its range."""


class HyperParameterError(OptionError):
    """A name that is not a hyper-parameter of the method."""


class OutputError(HsdagError):
    """A file or folder that cannot be written."""


class SearchError(HsdagError):
    """A search that cannot start, go on, or be resumed."""


class ExecutionError(HsdagError):
    """An inference that failed, was cancelled, or took longer than its limit."""


def last_line(error: BaseException) -> str:
    """Return the last line of an OpenVINO error that says what happened, not in which source file."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Exception from", "Please, check", "[Error]"))]
    return (telling or lines or [type(error).__name__])[-1]


def install_extra(extra: str) -> str:
    """Return how to install an optional dependency: from a clone, since hsdag is in no package index."""
    return f"run in your clone of hsdag: .venv/bin/pip install -c constraints.txt -e '.[{extra}]'"


def chosen(what: str, name: str, choices: Iterable[N]) -> N:
    """Return the choice called ``name``. Raises OptionError, which lists the choices of ``what``, if there is none."""
    by_name = {str(choice): choice for choice in choices}
    if name not in by_name:
        raise OptionError(f"unknown {what} {name!r}{choices_for(name, by_name)}")
    return by_name[name]


def choices_for(name: str, choices: Collection[str]) -> str:
    """Return the end of a message about a wrong name: the closest choice, if any is close, and all choices."""
    close = get_close_matches(name, choices, n=1)
    perhaps = f", perhaps {close[0]!r}" if close else ""
    return f"{perhaps}; choose one of {', '.join(choices)}"


def check_seed(seed: int) -> None:
    """Raise OptionError for a seed out of range."""
    if not 0 <= seed < 2**63:
        raise OptionError(f"the seed must be between 0 and 2^63 - 1, not {seed}")


FLAGS_VARIABLE = "HSDAG_SAYS_FLAGS"
"""Environment variable of a command, which its worker processes inherit: while it is set, texts name flags."""

_FLAGS = {
    "settings": "--set",
    "pins": "--pin",
    "inputs": "--input",
    "placements": "--placement",
    "run_folder": "--run",
    "with_timeline": "--trace",
    "requests": "--nireq",
    "iterations": "--niter",
}
"""Flag of each parameter that the command line calls otherwise."""


def flag(parameter: str) -> str:
    """Return the option of the command line that sets a parameter."""
    return _FLAGS.get(parameter, f"--{parameter.replace('_', '-')}")


def option(parameter: str) -> str:
    """Return a parameter's name for a text: as it is for callers from Python, its flag for readers of a command."""
    return flag(parameter) if os.environ.get(FLAGS_VARIABLE) else parameter


_KINDS: Mapping[str, Any] = {"int": Integral, "float": Real, "Any": object}


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it raises OptionError for arguments that its annotations do not admit, before it runs."""
    accepts = signature(call)

    @wraps(call)
    def checking(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in accepts.bind(*args, **kwargs).arguments.items():
            kind = accepts.parameters[name].annotation
            if not _fits(value, ast.parse(kind, mode="eval").body):
                raise OptionError(f"{call.__name__}: {name} must be {kind}, not {value!r:.80}")
        return call(*args, **kwargs)

    return checking


def _fits(value: object, kind: ast.expr) -> bool:
    """Return whether a value is of the annotated type; classes are compared by name, so that none is imported."""
    match kind:
        case ast.BinOp(left=left, right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Constant():
            return value is None
        case ast.Subscript(value=ast.Name(id="Mapping"), slice=ast.Tuple(elts=[key, each])):
            return isinstance(value, Mapping) and all(_fits(k, key) and _fits(v, each) for k, v in value.items())
        case ast.Subscript(value=ast.Name(id="Sequence"), slice=each):
            return isinstance(value, Sequence) and not isinstance(value, bytes) and all(_fits(v, each) for v in value)
        case ast.Name(id=name):
            return isinstance(value, _KINDS.get(name, ())) or any(c.__name__ == name for c in type(value).__mro__)
    return callable(value)
