"""docs/extending.md: every example is one new file that works, and prints what the document says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

DOCUMENT = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
KIND = r"(?:<!-- [^\n]*\n\n)?"
"""The comment that says how tests/docs/test_snippets.py takes a block."""
EXAMPLE = re.compile(
    rf"File `(?P<path>\S+)`:\n\n{KIND}```(?:python|toml)\n(?P<text>.*?)```\n\n{KIND}```(?P<use>.*?)```", re.DOTALL
)
EXAMPLES = {match["path"]: match for match in EXAMPLE.finditer(DOCUMENT)}
assert len(EXAMPLES) == 5
COMMANDS = """
import shlex, sys
from importlib import import_module
from pathlib import Path

*folders, _ = Path(sys.argv[1]).parts
for k in range(len(folders)):  # as if the one new file lay there
    name = ".".join(folders[: k + 1])
    module = import_module(name if folders[0] == "hsdag" else f"hsdag.{name}")
    module.__path__.append("/".join(["new", *folders[: k + 1]]))
from hsdag.cli.app import run

for line in sys.stdin.read().splitlines():
    print("$", line, flush=True)
    name, *arguments = shlex.split(line)
    if name == "cat":
        print(Path(arguments[0]).read_text(), end="", flush=True)
    elif run(arguments) != 0:
        sys.exit(1)
"""


def ran(path: str, given: str, folder: Path) -> str:
    """What a fresh interpreter prints of commands in a folder, for which the example of ``path`` is one new file."""
    new = folder / ("new" if path.endswith(".py") else "") / path
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(EXAMPLES[path]["text"], encoding="utf-8")
    assert not (ROOT / path).exists()
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, path], cwd=folder, input=given,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES)
def test_an_extension_is_one_new_file(path: str, tmp_path: Path) -> None:
    names = ("diamond.json", "split.json")
    documents = re.findall(
        r"```json\n(.*?)```", (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8"), re.DOTALL
    )
    for name, document in zip(names, documents, strict=False):
        (tmp_path / name).write_text(document)
    _, _, use = EXAMPLES[path]["use"].partition("\n")
    given = "\n".join(line[2:] for line in use.splitlines() if line.startswith("$ "))
    printed, claimed = (re.sub(r"in [\d.]+ s;", "", text) for text in (ran(path, given, tmp_path), use))
    assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in claimed.splitlines()]


@pytest.mark.slow
def test_place_takes_an_objective_and_says_where_its_file_is(tiny_resnet: Path, tmp_path: Path) -> None:
    """Beside a run folder of another name, too."""
    command = f"hsdag place {tiny_resnet} --partition-cpu 2 --budget 8s --max-evaluations 4 --method sa"
    printed = ran("runtime/objectives/blend.py", f"{command} --objective blend -o out.json --run myrun", tmp_path)
    assert "The placement is in out.json" in printed
    assert json.loads((tmp_path / "out.json").read_text())["objective"] == "blend"
    assert json.loads((tmp_path / "myrun" / "result.json").read_text())["placement_file"] == "out.json"
