"""The values that a shell completes: functions without arguments, which load neither OpenVINO, torch nor a compiler."""

from __future__ import annotations

from collections.abc import Callable
from enum import EnumType
from importlib import import_module
from typing import Any, get_args


def _names(module: str, name: str) -> Callable[[], list[str]]:
    """What a module has under a name, when a shell asks: an enumeration, a Literal, a tuple, or a function."""

    def values() -> list[str]:
        found: Any = getattr(import_module(f"hsdag.{module}"), name)
        if isinstance(found, EnumType):
            members: list[Any] = list(found)
            return [each.value for each in members]
        return list(get_args(found) or (found() if callable(found) else found))

    return values


methods = _names("methods", "method_names")
objectives = _names("runtime.objectives", "objective_names")
executors = _names("ir.placement.placement", "ExecutorName")
executor_choices = _names("ir.placement.placement", "ExecutorChoice")
executions = _names("runtime.problem.semantics", "Execution")
orders = _names("runtime.problem.semantics", "Order")
links = _names("runtime.problem.semantics", "Links")
rewards = _names("methods", "REWARDS")
hints = _names("methods", "HINTS")
references = _names("ir.placement.placement", "REFERENCES")
formats = _names("exports", "export_formats")
platforms = _names("runtime.platforms.reader", "list_platforms")
workloads = _names("models.registry", "WORKLOADS")


def zoo() -> list[str]:
    """Names of models and workloads."""
    from hsdag.models import LANGUAGE_MODELS, MODELS

    return [*(spec.name for spec in MODELS), *(spec.name for spec in LANGUAGE_MODELS), *workloads()]


def answering() -> list[str]:
    """Of ``schema``."""
    return sorted({name.partition(" ")[0] for name in _names("schemas", "RESULTS")()})
