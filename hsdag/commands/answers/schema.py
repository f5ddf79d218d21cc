"""JSON schemas of answers, made from their types."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import or_
from pkgutil import iter_modules
from typing import Any

from pydantic import TypeAdapter

from hsdag.ir.errors import OptionError

RESULTS: dict[str, tuple[str, ...]] = {
    "bench": ("commands.bench.BenchResult",),
    "bisect": ("commands.bisect.Bisection",),
    "compare": ("commands.compare.Comparison",),
    "devices": ("commands.inspect.DevicesResult",),
    "doctor": ("commands.doctor.examination.Examination", "commands.cuda_check.CudaReport"),
    "explain": ("reports.explanation.Explanation",),
    "export": ("commands.export.ExportResult",),
    "inspect": ("commands.inspect.InspectResult",),
    "models build": ("commands.inspect.BuiltModel", "commands.inspect.BuiltWorkload"),
    "models list": ("commands.inspect.ModelsResult",),
    "place": ("search.result.PlaceResult",),
    "profile": ("commands.profile.MeasuredCosts", "commands.profile.AssumedCosts"),
    "report": ("commands.report.ReportResult",),
    "simulate": ("commands.simulate.SimulateResult",),
    "solve": ("search.solution.SolveResult", "commands.batched.BatchSolution"),
}
"""The models of a command's results, which are its JSON answer."""


def answering_commands() -> tuple[str, ...]:
    """Commands whose ``--json`` answer has a schema, such as ``"models list"``."""
    package = import_module("hsdag.commands.answers")
    names = (module.name for module in iter_modules(package.__path__))
    typed = (name.replace("_", " ") for name in names if name not in ("base", "schema"))
    return tuple(sorted({*typed, *RESULTS}))


def schema_of(command: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a command's answer; keys that are not in it are forbidden.

    Raises OptionError for a command that has none, with the choices.
    """
    if command not in answering_commands():
        choices = ", ".join(answering_commands())
        raise OptionError(f"no JSON answer is known of hsdag {command}; choose one of {choices}")
    answer: Any
    if command in RESULTS:
        parted = [path.rpartition(".") for path in RESULTS[command]]
        answer = reduce(or_, [getattr(import_module(f"hsdag.{module}"), name) for module, _, name in parted])
        schema = TypeAdapter(answer).json_schema(mode="serialization")
    else:
        answer = import_module(f"hsdag.commands.answers.{command.replace(' ', '_')}").Answer
        schema = TypeAdapter(answer).json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            part["additionalProperties"] = False
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"hsdag {command} --json"}
    return {**schema, **title}
