"""JSON schemas of the files that hsdag reads and writes, made of the models that check them; `make schemas`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hsdag.exports.parts import PartsManifest
from hsdag.ir.files import write_atomically
from hsdag.ir.graph.graph_file import GraphRecord
from hsdag.ir.placement.placement import Placement
from hsdag.placing.result import PlaceResult
from hsdag.runtime.measuring.profile import ProfileRecord
from hsdag.runtime.platforms.reader import PlatformDocument
from hsdag.runtime.problem.problem_file import ProblemDocument
from hsdag.search.run_folder import EventRecord, PlanRecord, RunRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES: Mapping[str, tuple[str, type[BaseModel]]] = {
    "placement": ("A placement: the device of every op of a model.", Placement),
    "parts": ("manifest.json of a placed model in parts: files, devices, and what feeds what.", PartsManifest),
    "problem": ("A problem file: devices, links, and ops with their times.", ProblemDocument),
    "platform": ("A platform file, which is written in TOML: devices and links of a machine.", PlatformDocument),
    "run": ("run.json of a run folder: what a search is about.", RunRecord),
    "event": ("A line of events.jsonl of a run folder: a plan that was evaluated.", EventRecord),
    "candidate": ("A line of candidates.jsonl of a run folder: a simulated plan that was kept.", PlanRecord),
    "graph": ("graph.json of a run folder: the model as a graph.", GraphRecord),
    "profile": ("profile.json of a run folder: what was measured before the search.", ProfileRecord),
    "result": ("result.json of a run folder: how the search ended.", PlaceResult),
}
"""What each kind of file holds, and the model that reads it."""


def file_schema(kind: str) -> dict[str, Any]:
    """The JSON schema of one kind of file. A file that it takes may still contradict itself, which reading it tells."""
    title, model = FILES[kind]
    schema = model.model_json_schema()
    marks = [name for name, value in schema["properties"].items() if name in ("format", "version")]
    required = [*marks, *(name for name in schema.get("required", ()) if name not in marks)]
    return {"$schema": DIALECT, **schema, "title": f"hsdag {kind}", "description": title, "required": required}


def write_schemas(folder: Path) -> None:
    """Write ``KIND.json`` for every kind of file. Raises OutputError."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in FILES:
        text = json.dumps(file_schema(kind), indent=1, ensure_ascii=False)
        write_atomically(folder / f"{kind}.json", f"{text}\n".encode())


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
