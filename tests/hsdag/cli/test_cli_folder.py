"""``hsdag place FOLDER`` at the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hsdag.cli.app import run
from hsdag.ir.placement import Placement

pytestmark = pytest.mark.usefixtures("short_comparisons")


def test_a_folder_is_placed_model_by_model_and_what_fails_is_told(
    capsys: pytest.CaptureFixture[str], tiny_resnet: Path, tmp_path: Path
) -> None:
    for suffix in (".xml", ".bin"):
        shutil.copy(tiny_resnet.with_suffix(suffix), tmp_path / f"model{suffix}")
    (tmp_path / "broken.onnx").write_text("no model")
    arguments = ["place", str(tmp_path), "--devices", "CPU", "-o", str(tmp_path / "out")]
    assert run([*arguments, "--json"]) == 2
    captured = capsys.readouterr()
    broken, placed = json.loads(captured.out)["models"]
    assert (broken["outcome"], placed["outcome"]) == ("failed", "placed")
    assert "is not a model" in broken["reason"]
    assert Placement.load(placed["placement"]).used_devices == ("CPU",)
    assert captured.err.endswith(f"hsdag: 1 of 2 models of {tmp_path} failed\n")
    (tmp_path / "broken.onnx").unlink()
    assert run([*arguments, "--resume"]) == 0
    assert "model.xml  skipped" in capsys.readouterr().out


def test_a_folder_takes_no_run_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["place", str(tmp_path), "--run", str(tmp_path / "run")]) == 2
    assert "--run names the run folder of one model" in capsys.readouterr().err
