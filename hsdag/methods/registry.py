"""Registry of methods, which finds a method by its name, imports it on first use and sets its hyper-parameters."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hsdag.base.errors import HyperParameterError, OptionError, choices_for, option
from hsdag.methods import method_modules, method_names
from hsdag.methods.base import O, Placer, Preset

INITIAL = "initial"
"""Name of the hyper-parameter that holds the policy file a method begins with."""


def find_method(name: str) -> type[Placer[Any]]:
    """Return a method by name. Raises OptionError for an unknown name or a plug-in that does not load."""
    if name not in method_modules():
        raise OptionError(f"unknown method {name!r}{choices_for(name, method_names())}")
    module = method_modules()[name]
    try:
        members = vars(importlib.import_module(module)).values()
    except ImportError as error:
        raise OptionError(f"method {name!r} does not load: {error}") from error
    classes = [member for member in members if isinstance(member, type) and vars(member).get("name") == name]
    if not classes or not issubclass(classes[0], Placer):
        raise OptionError(f"plug-in {module} has no class, derived from Placer, whose name is {name!r}")
    return classes[0]


def make_placer(
    method: str, preset: str = "default", changes: Mapping[str, str] | None = None, *, is_cheap: bool = False
) -> Placer[Any]:
    """Return a placer with the hyper-parameters of a preset, some of them changed.

    Args:
        changes: Text of the changed hyper-parameters, by name.
        is_cheap: Whether plans will be simulated, which some presets depend on.

    Raises OptionError for an unknown method, preset or hyper-parameter, and for an invalid value.
    """
    chosen = find_preset(method, preset, is_cheap=is_cheap)
    return find_method(method)(changed_options(method, chosen.options, changes or {}))


def find_preset(method: str, preset: str, *, is_cheap: bool = False) -> Preset[Any]:
    """Return a preset of a method. Raises OptionError for an unknown method or preset."""
    if preset not in (presets := find_method(method).presets(is_cheap=is_cheap)):
        raise OptionError(f"method {method!r} has no preset {preset!r}{choices_for(preset, presets)}")
    return presets[preset]


def parse_changes(settings: Sequence[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` texts. Raises OptionError for a text of another form, and for a name given twice."""
    changes: dict[str, str] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise OptionError(f"{option('settings')} {text!r} is not of the form NAME=VALUE")
        if name in changes:
            raise OptionError(f"{option('settings')} gives {name} twice")
        changes[name] = value
    return changes


def begun_with(method: str, policy: str | Path, changes: Mapping[str, str]) -> dict[str, str]:
    """Return ``changes`` with the policy file to begin with added.

    Raises OptionError for a method that uses no policy, and if ``changes`` name a policy too.
    """
    if INITIAL not in (field.name for field in fields(find_method(method).options_type)):
        raise OptionError(
            f"method {method!r} uses no policy: leave out {option('init')}, or choose the method that the policy was "
            "trained for"
        )
    if INITIAL in changes:
        raise OptionError(f"{option('init')} and {option('settings')} {INITIAL} both give a policy; leave one out")
    return {**changes, INITIAL: str(policy)}


def changed_options(method: str, options: O, changes: Mapping[str, str]) -> O:
    """Return the hyper-parameters of a method with some changed, from their text by name.

    Raises HyperParameterError for an unknown name, OptionError for a value of another type or out of range.
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
        raise OptionError(f"{option('settings')} {name}={text}: {error.errors()[0]['msg']}") from error
