"""Whether pyright sees the folders at the top as parts of the package: their types, and names that they do not have."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
from hsdag.features import feature_matrix
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.models import build_model
from hsdag.runtime.timeline import Timeline

names: int = feature_matrix(graph_from_edges(["X"], [])).names
model: int = build_model("resnet50")
timeline: int = Timeline
from hsdag.ir.graph import nothing_of_that_name
"""
WRONG_LINES = [7, 8, 9, 10]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM, encoding="utf-8")
        settings = {"include": [program.name], "typeCheckingMode": "basic", "extraPaths": [str(ROOT)]}
        (Path(folder) / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.argv[1], "--pythonpath", sys.executable, "--project", folder, "--level", "error", "--outputjson"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = [each["range"]["start"]["line"] + 1 for each in found]
    if lines != WRONG_LINES:
        sys.exit(f"pyright should find an error in each of lines {WRONG_LINES}: {json.dumps(found, indent=1)}")
    sys.stdout.write("pyright sees the types of ir, features, runtime and models\n")


if __name__ == "__main__":
    main()
