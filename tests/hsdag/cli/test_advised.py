"""Every command that hsdag advises works when it is pasted."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

import hsdag
from hsdag.cli.app import run
from hsdag.commands.doctor.examination import examine
from hsdag.commands.place.run_folder import RunFolder
from hsdag.commands.report.words import next_steps_of
from hsdag.models.registry import build_model

pytestmark = pytest.mark.slow
WORDS = ("--partition-cpu", "2", "--budget", "12s", "--max-evaluations", "3", "--method", "mincut")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A model with an input of open sizes, in a folder with a blank in its name."""
    x = opset13.parameter(ov.PartialShape([-1, 16]), np.float32, name="x")
    y = opset13.matmul(x, np.ones((16, 16), np.float32), False, False, name="first")
    y = opset13.matmul(opset13.relu(y), np.ones((16, 16), np.float32), False, False, name="last")
    (tmp_path / "a folder").mkdir()
    path = tmp_path / "a folder" / "model.xml"
    ov.save_model(ov.Model([opset13.result(y)], [x], "odd"), path)
    return path


def ran(command: str) -> bool:
    tool, *words = shlex.split(command)
    assert tool == "hsdag"
    return run(words) == 0


def test_what_place_its_report_and_that_of_a_killed_search_advise_runs(
    odd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["place", str(odd), *WORDS, "--shape", "x[4,16]", "--verbose"]) == 0
    table, _, answer = capsys.readouterr().out.partition("\nRun ")
    assert all(word in table for word in ("median ms", "95% interval", "ops per device", "CPU_1", "max abs", "cosine"))
    *lines, advised = answer.splitlines()
    said = [line for line in lines if "  " not in line and not line.startswith("Warning: ")]  # without the table
    how = [line for line in said if line.startswith(("To use it in Python: ", "Without hsdag: "))]
    assert len(how) == 1
    assert len(said) - len(how) <= 4
    assert ran(advised.removeprefix("Next: "))
    kept = RunFolder.load(odd.with_suffix(".placement.run"))
    codes = [each.code for each in next_steps_of(kept) if each.code is not None and each.code.startswith("hsdag ")]
    assert codes
    for code in codes:
        assert "--shape" in code or "--placement" in code
        assert ran(code.replace("--budget 48s", "--budget 12s"))
    (kept.path / "result.json").unlink()  # as where the search was killed
    (advice,) = next_steps_of(RunFolder.load(kept.path))
    assert advice.code is not None
    assert "--resume" in advice.code
    assert ran(advice.code)


def test_what_is_advised_for_a_split_and_for_a_lone_cpu_runs(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pins = ("--pin", "first=CPU_0", "--pin", "last=CPU_1")
    assert run(["place", str(odd), *WORDS, "--shape", "x[4,16]", *pins]) == 0
    codes = [each.code or "" for each in next_steps_of(RunFolder.load(odd.with_suffix(".placement.run")))]
    namespace: dict[str, Any] = {"hsdag": hsdag}
    exec(codes[0], namespace)
    assert namespace["compiled"](np.zeros((4, 16), np.float32))[0].shape == (4, 16)
    capsys.readouterr()
    assert run(["place", str(odd), "--devices", "CPU", "--budget", "5s", "--shape", "x[4,16]"]) == 0
    advised = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: ")
    assert "--partition-cpu 2" in advised
    assert ran(f"{advised} --max-evaluations 2")


@pytest.mark.parametrize(("kind", "option"), [("odd", "--shape 'x[1,16]'"), ("llama", "--tokens")])
def test_what_doctor_advises_for_open_sizes_runs(odd: Path, kind: str, option: str) -> None:
    path = odd if kind == "odd" else odd.with_name("llama.xml")
    if kind == "llama":
        ov.save_model(build_model("tiny_stateful_llama_fp16"), path)
    (command,) = examine(path, "CPU", budget=20.0).next
    assert option in command
    assert ran(f"{command} --budget 12s --max-evaluations 2")
