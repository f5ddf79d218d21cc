"""The values that a shell completes: functions without arguments, which load neither OpenVINO, torch nor a compiler."""

from __future__ import annotations

from importlib import resources
from typing import get_args


def methods() -> list[str]:
    """Of ``--method``."""
    from hsdag.methods.names import method_names

    return list(method_names())


def objectives() -> list[str]:
    """Of ``--objective``."""
    from hsdag.runtime.objectives import objective_names

    return list(objective_names())


def executors() -> list[str]:
    """Of ``--executor``."""
    from hsdag.ir.placement.placement import ExecutorName

    return list(get_args(ExecutorName))


def executions() -> list[str]:
    """Of ``--execution``."""
    from hsdag.runtime.problem.semantics import Execution

    return [each.value for each in Execution]


def orders() -> list[str]:
    """Of ``--order``."""
    from hsdag.runtime.problem.semantics import Order

    return [each.value for each in Order]


def links() -> list[str]:
    """Of ``--links``."""
    from hsdag.runtime.problem.semantics import Links

    return [each.value for each in Links]


def rewards() -> list[str]:
    """Of ``--reward``."""
    from hsdag.methods.names import REWARDS

    return list(REWARDS)


def references() -> list[str]:
    """Of ``--reference``."""
    from hsdag.ir.placement.placement import ReferenceName

    return [name for name in get_args(ReferenceName) if name != "numpy"]


def hints() -> list[str]:
    """Of ``bench --hint``."""
    from hsdag.methods.names import HINTS

    return list(HINTS)


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
    from hsdag.models.registry import list_workloads

    return [spec.name for spec in list_workloads()]


def zoo() -> list[str]:
    """Names of models and workloads."""
    from hsdag.models.registry import list_language_models, list_models

    models, language = list_models(), list_language_models()
    return [spec.name for spec in models] + [spec.name for spec in language] + workloads()


def answering() -> list[str]:
    """Of ``schema``."""
    from hsdag.schemas.answers import answering_commands

    return sorted({name.partition(" ")[0] for name in answering_commands()})


def trained() -> list[str]:
    """Of ``train --method``."""
    return ["rules", "doppler"]
