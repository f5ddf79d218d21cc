"""What a newcomer does in a clean clone, with a model of their own: no more than README and quickstart say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tests.conftest import made_once
from tests.docs.snippets import ROOT

SAID = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/quickstart.md"))
OPENVINO = Path(ov.__file__).parent
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
IMAGES = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)

pytestmark = pytest.mark.slow


def own_model(path: Path) -> None:
    """Convolutions, pooled, and classified."""
    torch.manual_seed(0)
    convolutions = [layer for k in (3, 32, 32, 32) for layer in (nn.Conv2d(k, 32, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()
    with warnings.catch_warnings(action="ignore"):
        example = (torch.from_numpy(IMAGES),)
        torch.onnx.export(model, example, path, dynamo=False, input_names=["images"], output_names=["scores"])


@dataclass(frozen=True)
class Newcomer:
    """Who works in a clean clone, whose environment is activated, with the model in it."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Without what the tests' own environment knows of hsdag."""
        own = {"PATH": f"{self.folder}/.venv/bin:{os.environ['PATH']}", "HSDAG_CACHE_DIR": f"{self.folder}/.cache"}
        return {**os.environ, "PYTHONPATH": "", **OFFLINE, **own}

    def starts(self, command: str) -> subprocess.Popen[str]:
        """A command whose options the two documents name."""
        words = command.split()
        for word in words:
            if word.startswith("-") and word != "--bugdet":
                assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", SAID), f"{word} is in neither document"
        assert words[0] == "python" or " ".join(words[:2]) in SAID
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, cwd=self.folder, env=self.environment, **pipes)

    def done(self, command: str, code: int = 0) -> tuple[str, str]:
        """What a command printed, as answer and as news."""
        with self.starts(command) as process:
            answer, news = process.communicate(timeout=300)
        assert process.returncode == code, f"{command}: {news}"
        assert "Traceback" not in news
        assert code == 0 or (answer, news.count("hsdag: ")) == ("", 1)
        return answer, news


def clone(folder: Path) -> None:
    """The files that git knows, as they are, and an environment in which pip finds what hsdag needs, but not hsdag."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    venv.create(folder / ".venv")
    (here,) = (folder / ".venv").glob("lib/python*/site-packages")
    (here / "needs.pth").write_text(f"import sys; sys.path.insert(1, {sysconfig.get_path('purelib')!r})")


def first_steps(folder: Path) -> None:
    """``make place``, a model, inputs, and ``hsdag place``."""
    clone(folder)
    newcomer = Newcomer(folder)
    answer, _ = newcomer.done(f"make place PYTHON={sys.executable} BUDGET=10s")
    assert "\nRun " in answer
    assert "\nThe placement is in artifacts/resnet50.placement.json" in answer
    assert (folder / "hsdag" / "__pycache__").is_dir(), "it was not the clone that ran"
    own_model(folder / "own.onnx")
    np.savez(folder / "inputs.npz", images=IMAGES)
    np.save(folder / "images.npy", IMAGES)
    answer, _ = newcomer.done("hsdag place own.onnx --partition-cpu 2 --budget 6s")
    assert answer.startswith("Run ")
    assert "\nNext: hsdag " in answer


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """After the first steps."""
    return Newcomer(made_once(tmp_path_factory, "clone", first_steps))


@pytest.fixture(scope="module")
def expected(newcomer: Newcomer) -> NDArray[np.float32]:
    """What OpenVINO computes by itself."""
    compiled = ov.Core().compile_model(newcomer.folder / "own.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled([IMAGES])[0])


def test_the_answer_runs_in_python_is_explained_and_reported(newcomer: Newcomer, expected: NDArray[np.float32]) -> None:
    if shutil.which("g++") is None or not (OPENVINO / "include").exists():
        pytest.skip("no C++ compiler, or an OpenVINO without headers")
    newcomer.done("hsdag export own.placement.json --format openvino --model own.onnx -o placed")
    assert "latency_s: " in newcomer.done("python placed/run.py")[0]
    newcomer.done("python placed/run.py --input inputs.npz --output outputs.npz")
    np.testing.assert_allclose(np.load(newcomer.folder / "outputs.npz")["scores"], expected, rtol=0.05, atol=0.02)
    assert newcomer.done("hsdag explain own.placement.json")[0].startswith("Run ")
    newcomer.done("hsdag report own.placement.run -o report.html")
    assert "own" in (newcomer.folder / "report.html").read_text(encoding="utf-8")


def test_an_answer_on_one_device_is_deployed_in_cpp(newcomer: Newcomer, expected: NDArray[np.float32]) -> None:
    if shutil.which("g++") is None or not (OPENVINO / "include").exists():
        pytest.skip("no C++ compiler, or an OpenVINO without headers")
    newcomer.done("hsdag place own.onnx --devices CPU -o whole.json")
    newcomer.done("hsdag export whole.json --format openvino --model own.onnx -o whole")
    library, include = next((OPENVINO / "libs").glob("libopenvino.so.*")), OPENVINO / "include"
    flags = f"-std=c++17 whole/main.cpp -I{include} {library} -Wl,-rpath,{library.parent} -o run"
    subprocess.run(["g++", *flags.split()], cwd=newcomer.folder, check=True, timeout=200)
    IMAGES.tofile(newcomer.folder / "images.bin")
    subprocess.run(["./run", "whole", "images=images.bin"], cwd=newcomer.folder, check=True)
    found = np.fromfile(newcomer.folder / "scores.bin", np.float32)
    np.testing.assert_allclose(found, expected.ravel(), rtol=0.05, atol=0.02)


def test_a_search_that_was_killed_goes_on(newcomer: Newcomer) -> None:
    command, run = "hsdag place own.onnx --partition-cpu 2 -o killed.json --budget", newcomer.folder / "killed.run"
    events = run / "events.jsonl"
    with newcomer.starts(f"{command} 60s") as process:
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s and (not events.is_file() or events.read_bytes().count(b"\n") < 3):
            time.sleep(0.05)
        process.kill()
    before = events.read_text().splitlines()
    assert len(before) >= 2
    assert "raise --budget to go on" in newcomer.done(f"{command} 1s --resume")[1]
    newcomer.done(f"{command} 6s --resume")
    assert events.read_text().splitlines()[: len(before) - 1] == before[:-1]
    assert (newcomer.folder / "killed.json").is_file()


def test_a_mistake_is_one_line_that_helps(newcomer: Newcomer) -> None:
    for command, said in {
        "hsdag place own.onnx --partition-cpu 2 --bugdet 5s": r"No such option.*--budget",
        "hsdag place own.onx --partition-cpu 2": r"no such file: own\.onx",
        "hsdag place own.onnx --devices CPU,GPU.7": r"GPU\.7.*(CPU|devices)",
    }.items():
        *_, last = newcomer.done(command, 2)[1].splitlines()
        assert re.search(f"hsdag: .*{said}", last)
