"""What a newcomer does with a model of their own, in a folder of their own: no more than README and quickstart say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tests.docs.snippets import ROOT

SAID = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/quickstart.md"))
OPENVINO = Path(ov.__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
IMAGES = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)

pytestmark = pytest.mark.slow


def own_model(path: Path) -> None:
    """Convolutions, pooled, and classified."""
    torch.manual_seed(0)
    convolutions = [layer for k in (3, 32, 32, 32) for layer in (nn.Conv2d(k, 32, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()
    with warnings.catch_warnings(action="ignore"):
        names: dict[str, Any] = {"input_names": ["images"], "output_names": ["scores"]}
        torch.onnx.export(model, (torch.from_numpy(IMAGES),), path, dynamo=False, **names)


def words_of(command: str) -> list[str]:
    """The words of a command whose options the two documents name."""
    words = command.split()
    for word in words:
        if word.startswith("-") and word != "--bugdet":
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", SAID), f"{word} is in neither document"
    assert words[0] == "python" or f"hsdag {words[1]}" in SAID
    return [sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words])]


def done(command: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command in the newcomer's folder, and what it printed."""
    given: dict[str, Any] = {"cwd": folder, "env": ENVIRONMENT, "capture_output": True, "text": True}
    found = subprocess.run(words_of(command), check=False, timeout=300, **given)
    assert found.returncode == code, f"{command}: {found.stderr}"
    assert "Traceback" not in found.stderr
    assert code == 0 or (found.stdout, found.stderr.count("hsdag: ")) == ("", 1)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the model, inputs, and what ``hsdag place`` wrote."""
    made = tmp_path_factory.mktemp("own")
    own_model(made / "own.onnx")
    np.savez(made / "inputs.npz", images=IMAGES)
    np.save(made / "images.npy", IMAGES)
    answer = done("hsdag place own.onnx --partition-cpu 2 --budget 15s", made).stdout.splitlines()
    assert answer[0].startswith("Run ")
    assert any(line.startswith("Next: hsdag ") for line in answer)
    assert (made / "own.placement.json").is_file()
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> NDArray[np.float32]:
    """What OpenVINO computes by itself."""
    compiled = ov.Core().compile_model(folder / "own.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled([IMAGES])[0])


def test_the_answer_is_deployed_in_python_explained_and_reported(folder: Path, expected: NDArray[np.float32]) -> None:
    done("hsdag export own.placement.json --format python --model own.onnx -o run.py", folder)
    assert "latency_s: " in done("python run.py", folder).stdout
    done("python run.py --input inputs.npz --output outputs.npz", folder)
    np.testing.assert_allclose(np.load(folder / "outputs.npz")["scores"], expected, rtol=0.05, atol=0.02)
    assert done("hsdag explain own.placement.json", folder).stdout.startswith("Run ")
    done("hsdag report own.placement.run -o report.html", folder)
    assert "own" in (folder / "report.html").read_text(encoding="utf-8")


def test_an_answer_on_one_device_is_deployed_in_cpp(folder: Path, expected: NDArray[np.float32]) -> None:
    if shutil.which("g++") is None or not (OPENVINO / "include").exists():
        pytest.skip("no C++ compiler, or an OpenVINO without headers")
    done("hsdag place own.onnx --devices CPU -o whole.json", folder)
    done("hsdag export whole.json --format cpp --model own.onnx -o run.cpp", folder)
    library, include = next((OPENVINO / "libs").glob("libopenvino.so.*")), OPENVINO / "include"
    flags = f"-std=c++17 run.cpp -I{include} {library} -Wl,-rpath,{library.parent} -o run"
    subprocess.run(["g++", *flags.split()], cwd=folder, check=True, timeout=200)
    subprocess.run(["./run", "run.xml", "images=images.npy", "--output", "."], cwd=folder, check=True)
    np.testing.assert_allclose(np.load(folder / "scores.npy"), expected, rtol=0.05, atol=0.02)


def test_a_search_that_was_killed_goes_on(folder: Path) -> None:
    command, run = "hsdag place own.onnx --partition-cpu 2 -o killed.json --budget", folder / "killed.run"
    events = run / "events.jsonl"
    with subprocess.Popen(words_of(f"{command} 120s"), cwd=folder, env=ENVIRONMENT) as process:
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s and (not events.is_file() or events.read_bytes().count(b"\n") < 3):
            time.sleep(0.05)
        process.kill()
    before = events.read_text().splitlines()
    assert len(before) >= 2
    assert "raise --budget to go on" in done(f"{command} 1s --resume", folder).stderr
    done(f"{command} 15s --resume", folder)
    assert events.read_text().splitlines()[: len(before) - 1] == before[:-1]
    assert (folder / "killed.json").is_file()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("hsdag place own.onnx --partition-cpu 2 --bugdet 5s", r"No such option.*--budget"),
        ("hsdag place own.onx --partition-cpu 2", r"no such file: own\.onx"),
        ("hsdag place own.onnx --devices CPU,GPU.7", r"GPU\.7.*(CPU|devices)"),
    ],
)
def test_a_mistake_is_one_line_that_helps(command: str, said: str, folder: Path) -> None:
    *_, last = done(command, folder, 2).stderr.splitlines()
    assert re.search(f"hsdag: .*{said}", last)
