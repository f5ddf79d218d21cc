"""Every block of the documentation is checked, or runs and prints what its page shows; any other gives its reason.

What runs does so in a folder of small files under the names that pages use.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

import hsdag
from hsdag.cli.app import run
from hsdag.models import save_model_files
from tests.docs.dry import check_command
from tests.docs.snippets import PAGES, ROOT, Snippet, snippets_of
from tests.docs.test_newcomer import own_model

READERS = {"json": json.loads, "toml": tomllib.loads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_run_is_checked_and_no_command_hides_in_text(page: Path) -> None:
    for snippet in snippets_of(page):
        if snippet.kind == "parse" and snippet.language == "python":
            ast.parse(snippet.text)  # what it imports is looked for in test_names.py
        elif snippet.kind == "parse":
            for command, _ in snippet.commands():
                check_command(command)
        elif snippet.kind == "data":
            READERS[snippet.language](snippet.text)
        elif snippet.kind == "text":
            assert not re.search(r"^(?:\$|hsdag|make|pip|python) (?!\d)[\w-]", snippet.text, re.MULTILINE), (
                snippet.where
            )
    assert not re.search(r"^    (?:\$ )?(?:hsdag|make|pip|python) [\w-]", page.read_text(), re.MULTILINE)


def test_every_page_is_in_the_navigation() -> None:
    made = {"reference/command-line.md", "licences.md"}  # with the site
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - made == set(re.findall(r"[\w/-]+\.md", navigation)) - made, (
        "mkdocs.yml has the navigation of the site"
    )


STANDS_IN = {
    r"(?<=models build )(?:resnet50|inception_v3)\b": "tiny_resnet",
    r"(?<=models build )stateful-llama\S*": "tiny_stateful_llama_int4",
    r"\b(?:CPU,GPU\.0|GPU,CPU|GPU\.0,GPU\.1)\b": "FAST=CPU[INFERENCE_NUM_THREADS=1],SLOW=CPU[INFERENCE_NUM_THREADS=1]",
    r"\bGPU\.0=(?=\d)": "FAST=",
    r"\bGPU\.1=(?=\d)": "SLOW=",
    r"model\.xml(?=.*'ids)": "ids.xml",
    r"=bf16\b": "=f32",
    r"head/\.\*=CPU": ".*classifier.*=FAST",
    r"backbone/\.\*=GPU\.0": ".*stages.*=SLOW",
    r"\bcuda:0,[cuda:\d,]*": '"A=cpu[threads=1],B=cpu[threads=1]"',
    r'(?<=place )(?:chainmm|"chainmm\[size=1024\]")': "'chainmm[size=64]'",
    r"(?<=--budget )\w+": "5s",
    r"(?<=budget=)\"\w+\"": '"5s"',
    r"(?<=budget_s=)[\d.]+": "5",
    r"(?<=_model\()\"resnet50\"|(?<=_model_files\()\"resnet50\"": '"tiny_resnet"',
    r"^hsdag place(?!.* --method )": "hsdag place --method met",
    r"^hsdag place(?!.* --budget )": "hsdag place --budget 5s",
    r"^hsdag compare(?!.* --methods )": "hsdag compare --methods met,heft",
    r"^hsdag compare(?!.* --budget )": "hsdag compare --budget 5s",
    r"^hsdag bench(?!.* -t )": "hsdag bench -t 1s",
    r"(?<=--seeds )\d+": "1",
}
"""What a run takes in the place of what a page says: small models, devices that are there, short searches."""


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


NUMBER = re.compile(r"[\d.,]*\d(?:e[+-]?\d+)?")
HEADS = ("candidate", "device", "method", "op")
"""First words of the heads of tables."""
SHORTENED = "..."
"""A line of output that stands for any number of lines."""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, short_comparisons: None) -> Path:
    """The files that pages read and do not write."""
    folder = tmp_path_factory.mktemp("stock")
    save_model_files("tiny_resnet", folder / "model.xml")
    problems = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    diamond, split = re.findall(r"```json\n(.*?)```", problems, re.DOTALL)
    for name, document in {"problem.json": diamond, "diamond.json": diamond, "split.json": split}.items():
        (folder / name).write_text(document)
    short: dict[str, Any] = {"partition_cpu": 2, "method": "best-device", "budget": "1s", "executor": "hetero"}
    found = hsdag.place(folder / "model.xml", run_folder=folder / "model.placement.run", **short)
    for name in ("model.placement.json", "placement.json"):
        found.save(folder / name)
    copies = [{"device": f"CPU_{k}", "requests": 1} for k in range(2)]
    of_copies = {"version": 3, "affinity": {}, "names": {}, "executor": "work-conserving", "copies": copies}
    (folder / "copies.json").write_text(json.dumps(json.loads((folder / "placement.json").read_text()) | of_copies))
    save_model_files("tiny_stateful_llama_int4", folder / "llama.xml")
    own_model(folder / "model.onnx")
    ids = opset13.parameter([1, -1], np.int64, name="ids")
    ids.get_output_tensor(0).set_names({"ids"})
    ov.save_model(ov.Model([opset13.tanh(opset13.convert(ids, "f32"))], [ids]), folder / "ids.xml")
    (folder / "artifacts").mkdir()
    np.save(folder / "image.npy", np.zeros((1, 3, 32, 32), np.float32))
    np.savez(folder / "inputs.npz", images=np.zeros((1, 3, 32, 32), np.float32))
    return folder


@pytest.fixture
def scene(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for one page, in which the test works."""
    shutil.copytree(stock, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def words(line: str) -> str:
    """A line of output without its figures."""
    return " ".join(NUMBER.sub("0", line).split())


def checked_output(printed: str, claimed: list[str], snippet: Snippet) -> None:
    """Each line that a page shows is printed, in whatever order, but for figures.

    Where the comment of a block says that the answer differs, the first line of an output and the heads of tables are.
    """
    lines = {words(line) for line in printed.splitlines()}
    shown = [line for line in claimed if line.strip() not in ("", SHORTENED)]
    if snippet.reason:
        shown = [line for line in shown if line is shown[0] or line.split()[0] in HEADS]
    missing = [line for line in shown if words(line) not in lines]
    assert not missing, f"{snippet.where} shows what is not printed: {missing}; printed was\n{printed}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(s.kind == "run" for s in snippets_of(p))], ids=lambda page: page.name
)
def test_what_can_be_run_runs_and_prints_what_is_shown(page: Path, scene: Path) -> None:
    left: dict[str, Any] = {"__name__": "__main__"}  # by the Python blocks so far, for later ones
    for snippet in (s for s in snippets_of(page) if s.kind == "run"):
        if snippet.language == "python":
            exec(compile(adapted(snippet.text), snippet.where, "exec"), left)
        for command, claimed in snippet.commands():
            check_command(command)
            checked_output(output_of(adapted(command)), claimed, snippet)
