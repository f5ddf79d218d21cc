"""Build JSON schemas of command results (``--json``) and of files; ``make schemas`` writes those of files."""

from __future__ import annotations

import json
import sys
from functools import reduce
from importlib import import_module
from operator import or_
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hsdag.base.errors import OptionError

DIALECT = "https://json-schema.org/draft/2020-12/schema"

RESULTS: dict[str, tuple[str, ...]] = {
    "bench": ("commands.bench.BenchResult",),
    "bisect": ("commands.bisect.Bisection",),
    "compare": ("commands.compare.Comparison",),
    "devices": ("commands.inspect.DevicesResult",),
    "doctor": ("commands.doctor.examination.Examination", "commands.doctor.cuda_check.CudaReport"),
    "explain": ("commands.explain.explanation.Explanation",),
    "export": ("exports.base.ExportResult",),
    "inspect": ("commands.inspect.InspectResult",),
    "models build": ("commands.inspect.BuiltModel", "commands.inspect.BuiltWorkload"),
    "models list": ("commands.inspect.ModelsResult",),
    "place": ("commands.place.result.PlaceResult",),
    "profile": ("commands.profile.ProfileResult", "commands.profile.AssumedCosts"),
    "report": ("commands.report.report.ReportResult",),
    "shard": ("commands.shard.ShardResult",),
    "simulate": ("search.simulate.SimulateResult",),
    "solve": ("search.solution.SolveResult",),
    "train": ("commands.train.train.TrainResult",),
}
"""Result classes of each command, whose JSON forms are its answer; paths are relative to ``hsdag``."""

FILES = {
    "placement": "ir.placement.placement.Placement",
    "problem": "runtime.problem.problem_file.ProblemDocument",
    "platform": "runtime.platforms.platform.PlatformDocument",
    "run": "commands.place.run_folder.RunRecord",
    "event": "commands.place.run_folder.EventRecord",
    "candidate": "commands.place.records.PlanRecord",
    "graph": "ir.graph.graph_file.GraphRecord",
    "profile": "runtime.measuring.profile.ModelProfile",
    "result": "commands.place.result.PlaceResult",
}
"""Class that reads each kind of file; the last six kinds are the files of a run folder."""


def _model(path: str) -> Any:
    """Import a class by its path relative to ``hsdag``."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"hsdag.{module}"), name)


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a command's answer; it forbids keys that it does not list.

    Raises OptionError, with the choices, for a command without a JSON answer.
    """
    if command not in RESULTS:
        raise OptionError(f"no JSON answer is known of hsdag {command}; choose one of {', '.join(RESULTS)}")
    schema = TypeAdapter(reduce(or_, map(_model, RESULTS[command]))).json_schema(mode="serialization")
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            part["additionalProperties"] = False
    return {**schema, "$schema": DIALECT, "title": f"hsdag {command} --json"}


def file_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of one kind of file.

    A file that satisfies the schema may still contradict itself; reading the file checks that.
    """
    schema = _model(FILES[kind]).model_json_schema()
    marks = [name for name in schema["properties"] if name in ("format", "version")]
    required = [*marks, *(name for name in schema.get("required", ()) if name not in marks)]
    return {"$schema": DIALECT, **schema, "title": f"hsdag {kind}", "required": required}


def write_schemas(folder: Path) -> None:
    """Write ``KIND.json`` for every kind of file into ``folder``. Raises OutputError."""
    from hsdag.base.files import write_atomically

    folder.mkdir(parents=True, exist_ok=True)
    for kind in FILES:
        text = json.dumps(file_schema(kind), indent=1, ensure_ascii=False)
        write_atomically(folder / f"{kind}.json", f"{text}\n".encode())


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
