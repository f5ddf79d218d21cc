"""Arguments of public functions: one of a wrong type is refused in one line, by the function's own annotations."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from hsdag.ir.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")

_KINDS: Mapping[str, Any] = {"int": Integral, "float": Real, "Any": object}


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """A function that raises OptionError for arguments that its annotations do not admit, before it does anything."""
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
    """Whether a value is of the type that an annotation names; classes are known by name, so none is imported."""
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
