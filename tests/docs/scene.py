"""The folder in which the blocks of a page run: small files under the names that the pages use, and what stands in."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import hsdag
from hsdag.cli.app import run
from hsdag.models import save_model_files
from tests.docs.snippets import ROOT

STANDS_IN = {
    r"(?<=models build )(?:resnet50|inception_v3)\b": "tiny_resnet",
    r"(?<=models build )stateful-llama\S*": "tiny_stateful_llama_int4",
    r"\bCPU,GPU\.0\b": "FAST=CPU[INFERENCE_NUM_THREADS=1],SLOW=CPU[INFERENCE_NUM_THREADS=1]",
    r"(?<=--budget )\w+": "1s",
    r"(?<=budget=)\"\w+\"": '"1s"',
    r"(?<=budget_s=)[\d.]+": "1",
    r"(?<=_model\()\"resnet50\"|(?<=_model_files\()\"resnet50\"": '"tiny_resnet"',
    r"^hsdag place(?!.* --method )": "hsdag place --method met",
    r"^hsdag bench(?!.* -t )": "hsdag bench -t 1s",
    r"(?<=--seeds )\d+": "1",
}
"""What a run takes in the place of what a page says: small models, devices that are there, short searches."""


def prepare(folder: Path) -> None:
    """The files that pages read and do not write."""
    save_model_files("tiny_resnet", folder / "model.xml")
    problems = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    diamond, split = re.findall(r"```json\n(.*?)```", problems, re.DOTALL)
    for name, document in {"problem.json": diamond, "diamond.json": diamond, "split.json": split}.items():
        (folder / name).write_text(document)
    hsdag.place(
        folder / "model.xml", partition_cpu=2, method="best-device", budget="1s", run_folder=folder / "model.run"
    ).save(folder / "model.placement.json")
    shutil.copy(folder / "model.placement.json", folder / "placement.json")
    (folder / "artifacts").mkdir()
    np.save(folder / "image.npy", np.zeros((1, 3, 32, 32), np.float32))


def adapted(text: str) -> str:
    """A command or program with what stands in."""
    for pattern, small in STANDS_IN.items():
        text = re.sub(pattern, small, text)
    return text


def output_of(command: str) -> str:
    """What a command prints on stdout. Commands of hsdag run in this process. Raises AssertionError where it fails."""
    name, *arguments = shlex.split(command, comments=True)
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        if name == "hsdag":
            code = run(arguments)
            assert code == 0, f"{command}: exit code {code}: {complaints.getvalue()}"
        elif name == "make":
            for line in recipe(arguments):
                printed.write(output_of(adapted(line)))
        elif name == "." and arguments == [".venv/bin/activate"]:
            pass
        elif name == "cat":
            printed.write("".join(Path(path).read_text() for path in arguments))
        elif name == "python" and arguments[0].endswith(".py"):
            printed.write(run_python(arguments))
        else:
            raise AssertionError(f"{command}: nothing here runs {name!r}; say <!-- parse: REASON --> before the block")
    return printed.getvalue()


def recipe(targets: list[str]) -> list[str]:
    """The commands of hsdag by which make makes targets."""
    done = subprocess.run(["make", "-n", "-B", *targets], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.removeprefix(".venv/bin/") for line in done.stdout.splitlines() if line.startswith(".venv/bin/hsdag ")]


def run_python(arguments: list[str]) -> str:
    """What a program prints on stdout, in a process of its own: it may load OpenVINO's plugins in the main thread."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"python {arguments}: exit code {done.returncode}: {done.stderr}"
    return done.stdout


def run_program(text: str, names: dict[str, Any]) -> None:
    """Run a Python block; ``names`` are those that blocks before it have left."""
    exec(compile(text, "<block>", "exec"), names)
