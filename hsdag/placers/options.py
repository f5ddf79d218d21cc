"""Hyper-parameters from text: fields of a method's dataclass by name, as ``--set NAME=VALUE`` gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hsdag.ir.errors import OptionError

O = TypeVar("O")  # noqa: E741 - options


def parse_changes(given: Sequence[str]) -> dict[str, str]:
    """Text by name from ``NAME=VALUE``. Raises OptionError for what has another form, or a name given twice."""
    changes: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise OptionError(f"--set {text!r} is not of the form NAME=VALUE")
        if name in changes:
            raise OptionError(f"--set gives {name} twice")
        changes[name] = value
    return changes


def changed_options(method: str, options: O, changes: Mapping[str, str]) -> O:
    """The hyper-parameters of a method with some changed.

    Raises OptionError for a name that is none, with the choices, and for a value of another type or out of range.
    """
    hints = get_type_hints(type(options))
    names = [field.name for field in fields(options)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, text in changes.items():
        if name not in names:
            choices = f"choose one of {', '.join(names)}" if names else "it has none"
            raise OptionError(f"method {method!r} has no hyper-parameter {name!r}; {choices}")
        values[name] = _parsed(name, text, hints[name])
    return replace(options, **values)  # type: ignore[type-var]


def _parsed(name: str, text: str, hint: Any) -> Any:
    if text.lower() == "none" and NoneType in get_args(hint):
        return None
    try:
        return TypeAdapter(hint).validate_python(text)
    except ValidationError as error:
        raise OptionError(f"--set {name}={text}: {error.errors()[0]['msg']}") from error
