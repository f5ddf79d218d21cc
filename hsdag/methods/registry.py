"""Methods by name: each is a class in a file of a family's folder, imported on first use.

Hyper-parameters are fields of a method's dataclass by name, as ``--set NAME=VALUE`` gives them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hsdag.ir.errors import HyperParameterError, OptionError, choices_for
from hsdag.methods import method_modules, method_names
from hsdag.methods.base import O, Placer, Preset

INITIAL = "initial"
"""The hyper-parameter of methods that can begin with a policy: its file."""


def find_method(name: str) -> type[Placer[Any]]:
    """A method by name. Raises OptionError that lists the choices, or says what is wrong with a plug-in."""
    if name not in method_modules():
        raise OptionError(f"unknown method {name!r}{choices_for(name, method_names())}")
    module = method_modules()[name]
    try:
        classes = vars(importlib.import_module(module)).values()
    except ImportError as error:
        raise OptionError(f"method {name!r} does not load: {error}") from error
    found = [each for each in classes if isinstance(each, type) and vars(each).get("name") == name]
    if not found or not issubclass(found[0], Placer):
        raise OptionError(f"plug-in {module} has no class, derived from Placer, whose name is {name!r}")
    return found[0]


def make_placer(
    method: str, preset: str = "default", changes: Mapping[str, str] | None = None, *, is_cheap: bool = False
) -> Placer[Any]:
    """A placer with the hyper-parameters of a preset, some of them changed; ``is_cheap`` as in ``Placer.presets``.

    Raises OptionError for an unknown method, preset or hyper-parameter, with the choices.
    """
    chosen = find_preset(method, preset, is_cheap=is_cheap)
    return find_method(method)(changed_options(method, chosen.options, changes or {}))


def find_preset(method: str, preset: str, *, is_cheap: bool = False) -> Preset[Any]:
    """A preset of a method. Raises OptionError that lists the choices."""
    if preset not in (presets := find_method(method).presets(is_cheap=is_cheap)):
        raise OptionError(f"method {method!r} has no preset {preset!r}{choices_for(preset, presets)}")
    return presets[preset]


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


def begun_with(method: str, policy: str | Path, changes: Mapping[str, str]) -> dict[str, str]:
    """``changes`` with a policy file to begin with, as ``--init`` gives it.

    Raises OptionError for a method that uses none, and where ``changes`` name a file too.
    """
    if INITIAL not in (field.name for field in fields(find_method(method).options_type)):
        raise OptionError(f"method {method!r} uses no policy: leave out --init, or choose 'auto' or the policy's own")
    if INITIAL in changes:
        raise OptionError(f"--init and --set {INITIAL} both give a policy; leave one out")
    return {**changes, INITIAL: str(policy)}


def changed_options(method: str, options: O, changes: Mapping[str, str]) -> O:
    """The hyper-parameters of a method with some changed.

    Raises OptionError for a name that is none, with the choices, and for a value of another type or out of range.
    """
    hints = get_type_hints(type(options))
    names = [field.name for field in fields(options)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, text in changes.items():
        if name not in names:
            choices = choices_for(name, names) if names else "; it has none"
            raise HyperParameterError(f"method {method!r} has no hyper-parameter {name!r}{choices}")
        values[name] = _parsed(name, text, hints[name])
    return replace(options, **values)  # type: ignore[type-var]


def _parsed(name: str, text: str, hint: Any) -> Any:
    if text.lower() == "none" and NoneType in get_args(hint):
        return None
    try:
        return TypeAdapter(hint).validate_python(text)
    except ValidationError as error:
        raise OptionError(f"--set {name}={text}: {error.errors()[0]['msg']}") from error
