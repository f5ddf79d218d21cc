"""Export of placements for the work-conserving executor: a script that runs them, and a clear word on C++."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest

from hsdag.ir import OptionError, Placement, PlacementError
from hsdag.ir.export import export_placement

Place = Callable[[ov.Model, Callable[[int], str]], Placement]
Alternating = Callable[[ov.Model], Placement]


def side_by_side(placement: Placement) -> Placement:
    return placement.model_copy(update={"executor": "work-conserving"})


def run_script(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=60)


def test_the_script_runs_the_placement_side_by_side(tmp_path: Path, model: ov.Model, alternating: Alternating) -> None:
    script, *beside = export_placement(side_by_side(alternating(model)), "python", tmp_path / "run.py", model)
    assert [path.name for path in beside] == ["run.xml", "run.bin"]
    assert "hsdag.compile_work_conserving" in script.read_text()
    done = run_script(script)
    assert done.stderr == ""
    assert re.fullmatch(r"subgraphs: \d+\nlatency_ms: \d+\.\d+\n", done.stdout)


def test_without_the_model_the_script_names_the_one_it_lacks(
    tmp_path: Path, model: ov.Model, alternating: Alternating
) -> None:
    (script,) = export_placement(side_by_side(alternating(model)), "python", tmp_path / "run.py")
    done = run_script(script)
    assert (done.returncode, "no such file: " in done.stderr) == (1, True)


def test_a_script_is_not_written_for_another_model(tmp_path: Path, model: ov.Model, alternating: Alternating) -> None:
    placement = side_by_side(alternating(model))
    odd = placement.model_copy(
        update={"model": placement.model.model_copy(update={"fingerprint": "sha256:" + "0" * 64})}
    )
    with pytest.raises(PlacementError, match="this is another model"):
        export_placement(odd, "python", tmp_path / "run.py", model)
    assert not list(tmp_path.iterdir())


def test_no_program_is_written_for_the_work_conserving_executor(
    tmp_path: Path, model: ov.Model, alternating: Alternating
) -> None:
    with pytest.raises(OptionError, match="only placements for HETERO can be exported to C"):
        export_placement(side_by_side(alternating(model)), "cpp", tmp_path / "run.cpp", model)


def test_a_placement_on_one_device_is_a_program_whatever_its_executor(
    tmp_path: Path, model: ov.Model, place: Place
) -> None:
    placement = side_by_side(place(model, lambda _: "SLOW"))
    assert export_placement(placement, "cpp", tmp_path / "run.cpp", model)[0].is_file()
