"""``hsdag doctor`` on the software GPUs: what it says of them, and that HETERO does what it predicts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hsdag.commands.doctor import machine
from hsdag.commands.doctor.examination import Examination, examine
from hsdag.commands.doctor.findings import Severity
from hsdag.models import save_model_files

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Examination:
    path = save_model_files("tiny_resnet", tmp_path_factory.mktemp("zoo") / "tiny_resnet.xml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "PAIR_S", 0.0)
        return examine(path, "GPU.0,GPU.1", budget_s=300.0)


def test_a_gpu_tells_its_driver_memory_and_precision(found: Examination) -> None:
    for device in found.devices:
        assert device.facts is not None
        assert device.facts.precision == "f16"
        assert device.facts.memory_bytes is not None
        assert device.precision is not None
        assert device.precision.driver
        by_default, in_f32 = device.precision.default["max_relative"], device.precision.single["max_relative"]
        assert by_default is not None
        assert in_f32 is not None
        assert in_f32 < 1e-5 < by_default < 1e-2


def test_a_tensor_between_two_gpus_goes_through_the_host_and_is_copied_by_the_reader(found: Examination) -> None:
    (pair,) = found.pairs
    assert pair.there is not None
    assert pair.back is not None
    assert (pair.there.memory, pair.there.copied_by, pair.there.is_right) == ("host", ("GPU.1",), True)
    assert (pair.back.memory, pair.back.copied_by, pair.back.is_right) == ("host", ("GPU.0",), True)


def test_the_second_gpu_gets_nothing_because_the_first_holds_the_model(found: Examination) -> None:
    assert [finding.text for finding in found.findings if finding.severity is Severity.DANGER] == []
    texts = " ".join(finding.text for finding in found.findings)
    assert re.search(r"GPU\.1 will get nothing because GPU\.0 holds 1\.2 x [\d.]+ MB", texts)


@pytest.mark.parametrize(
    ("models", "options", "row"),
    [
        ("detour,wired-0,branches", "GPU.0,CPU", r"wired-0 .* GPU\.0:56/4 CPU:8/6 "),
        ("tiny_bert", "GPU.0,GPU.1,CPU --share 0.5", r"tiny_bert .* GPU\.0:\d+/1 GPU\.1:\d+/1 CPU:\d+/1 "),
    ],
)
def test_hetero_does_what_was_predicted(models: str, options: str, row: str) -> None:
    """An op that the GPU does not run, cycles and a refusal; GPUs that hold less than half of the weights each."""
    script = ROOT / "benchmarks" / "hetero_prediction.py"
    command = [sys.executable, str(script), "--models", models, "--devices", *options.split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(row, done.stdout), done.stdout
