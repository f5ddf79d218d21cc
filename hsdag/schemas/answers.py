"""The models of what commands print with ``--json``, and the JSON schemas that are made of them."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any

from pydantic import TypeAdapter

from hsdag.ir.errors import OptionError

RESULTS: dict[str, tuple[str, ...]] = {
    "bench": ("benchmarking.bench.BenchResult",),
    "bisect": ("diagnosis.bisect.Bisection",),
    "compare": ("comparing.compare.Comparison",),
    "devices": ("diagnosis.inspect.DevicesResult",),
    "doctor": ("diagnosis.examination.Examination", "diagnosis.cuda_check.CudaReport"),
    "explain": ("explaining.explanation.Explanation",),
    "export": ("exports.base.ExportResult",),
    "inspect": ("diagnosis.inspect.InspectResult",),
    "models build": ("diagnosis.inspect.BuiltModel", "diagnosis.inspect.BuiltWorkload"),
    "models list": ("diagnosis.inspect.ModelsResult",),
    "place": ("placing.result.PlaceResult",),
    "profile": ("benchmarking.profile.ProfileResult", "benchmarking.profile.AssumedCosts"),
    "report": ("reporting.report.ReportResult",),
    "simulate": ("solving.simulate.SimulateResult",),
    "solve": ("solving.solution.SolveResult", "solving.batched.BatchSolution"),
    "train": ("training.train.TrainResult",),
}
"""The models of a command's results, which are its JSON answer."""


def answering_commands() -> tuple[str, ...]:
    """Commands whose ``--json`` answer has a schema, such as ``"models list"``."""
    return tuple(RESULTS)


def schema_of(command: str) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a command's answer; keys that are not in it are forbidden.

    Raises OptionError for a command that has none, with the choices.
    """
    if command not in answering_commands():
        choices = ", ".join(answering_commands())
        raise OptionError(f"no JSON answer is known of hsdag {command}; choose one of {choices}")
    homes = [path.rpartition(".") for path in RESULTS[command]]
    answer: Any = reduce(or_, [getattr(import_module(f"hsdag.{module}"), name) for module, _, name in homes])
    schema = TypeAdapter(answer).json_schema(mode="serialization")
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            part["additionalProperties"] = False
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"hsdag {command} --json"}
    return {**schema, **title}
