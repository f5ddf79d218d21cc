"""The values that a shell completes: functions without arguments, which load neither OpenVINO, torch nor a compiler."""

from __future__ import annotations

from collections.abc import Callable
from enum import EnumType
from importlib import import_module, resources
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


def formats() -> list[str]:
    """Of ``export --format``."""
    from hsdag.exports import export_formats

    return list(export_formats())


def platforms() -> list[str]:
    """Of ``--platform``: those that come with hsdag."""
    folder = resources.files("hsdag.runtime") / "platforms"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def workloads() -> list[str]:
    """Names of workloads."""
    from hsdag.models.registry import WORKLOADS

    return list(WORKLOADS)


def zoo() -> list[str]:
    """Names of models and workloads."""
    from hsdag.models import LANGUAGE_MODELS, MODELS

    return [*(spec.name for spec in MODELS), *(spec.name for spec in LANGUAGE_MODELS), *workloads()]


def answering() -> list[str]:
    """Of ``schema``."""
    return sorted({name.partition(" ")[0] for name in _names("schemas", "RESULTS")()})
