"""What a newcomer does with a model of their own, in a folder of their own: no more than README and quickstart say."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.docs.snippets import ROOT

SAID = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/quickstart.md"))
OPENVINO = Path(ov.__file__).parent
IMAGES = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)

pytestmark = pytest.mark.slow


def own_model(path: Path) -> None:
    """Four branches of convolutions, joined, pooled, and classified."""
    rng, nodes, weights = np.random.default_rng(0), [], []

    def convolution(name: str, source: str, channels: int) -> str:
        kernel = (rng.standard_normal((32, channels, 3, 3)) / (3 * channels**0.5)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{name}/kernel"))
        nodes.append(
            helper.make_node("Conv", [source, f"{name}/kernel"], [f"{name}/out"], f"{name}/conv", pads=[1] * 4)
        )
        nodes.append(helper.make_node("Relu", [f"{name}/out"], [f"{name}/relu"], f"{name}/relu"))
        return f"{name}/relu"

    stem = convolution("stem", "images", 3)
    branches = [convolution(f"branch{k}/2", convolution(f"branch{k}/1", stem, 32), 32) for k in range(4)]
    head = (rng.standard_normal((128, 10)) / 11).astype(np.float32)
    weights.append(numpy_helper.from_array(head, "head"))
    nodes += [
        helper.make_node("Concat", branches, ["joined"], "joined", axis=1),
        helper.make_node("GlobalAveragePool", ["joined"], ["pooled"], "pooled"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flat"),
        helper.make_node("MatMul", ["flat", "head"], ["scores"], "scores"),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, IMAGES.shape)
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, 10))
    graph = helper.make_graph(nodes, "own", [images], [scores], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def words_of(command: str) -> list[str]:
    """The words of a command whose options the two documents name."""
    words = command.split()
    for word in words:
        if word.startswith("-"):
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", SAID), f"{word} is in neither document"
    if words[0] == "hsdag":
        assert f"hsdag {words[1]}" in SAID
        return [sys.executable, "-m", *words]
    return [sys.executable, *words[1:]] if words[0] == "python" else words


def done(command: str, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command in the newcomer's folder, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        words_of(command), cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert found.returncode == code, f"{command}: {found.stderr}"
    assert "Traceback" not in found.stderr
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the model, inputs, and what ``hsdag place`` wrote."""
    made = tmp_path_factory.mktemp("own")
    own_model(made / "own.onnx")
    np.savez(made / "inputs.npz", images=IMAGES)
    np.save(made / "images.npy", IMAGES)
    answer = done("hsdag place own.onnx --partition-cpu 2 --budget 15s", made).stdout.splitlines()
    assert answer[0].startswith("Run the model")
    assert any(line.startswith("Next: hsdag ") for line in answer)
    assert (made / "own.placement.json").is_file()
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> NDArray[np.float32]:
    """What OpenVINO computes by itself."""
    compiled = ov.Core().compile_model(folder / "own.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled([IMAGES])[0])


def test_the_answer_is_deployed_in_python(folder: Path, expected: NDArray[np.float32]) -> None:
    done("hsdag export own.placement.json --format python --model own.onnx -o run.py", folder)
    assert "latency_ms: " in done("python run.py", folder).stdout
    done("python run.py --input inputs.npz --output outputs.npz", folder)
    np.testing.assert_allclose(np.load(folder / "outputs.npz")["scores"], expected, rtol=0.05, atol=0.02)
    program = "import numpy as np, run; print(run.run({'images': np.load('images.npy')})['scores'].argmax())"
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert int(printed.stdout) == expected.argmax()


def test_an_answer_on_one_device_is_deployed_in_cpp(folder: Path, expected: NDArray[np.float32]) -> None:
    if shutil.which("g++") is None or not (OPENVINO / "include").exists():
        pytest.skip("no C++ compiler, or an OpenVINO without headers")
    done("hsdag place own.onnx --devices CPU -o whole.json", folder)
    done("hsdag export whole.json --format cpp --model own.onnx -o run.cpp", folder)
    library, include = next((OPENVINO / "libs").glob("libopenvino.so.*")), OPENVINO / "include"
    flags = f"-std=c++17 run.cpp -I{include} {library} -Wl,-rpath,{library.parent} -o run"
    subprocess.run(["g++", *flags.split()], cwd=folder, check=True, timeout=200)
    printed = subprocess.run(
        ["./run", "run.xml", "images=images.npy", "--output", "."],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "latency_ms: " in printed.stdout
    np.testing.assert_allclose(np.load(folder / "scores.npy"), expected, rtol=0.05, atol=0.02)


def test_the_answer_is_explained_and_reported(folder: Path) -> None:
    assert "Run the model" in done("hsdag explain own.placement.json", folder).stdout
    done("hsdag report own.placement.run -o report.html", folder)
    assert "own" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_search_that_was_killed_goes_on(folder: Path) -> None:
    command, run = "hsdag place own.onnx --partition-cpu 2 -o killed.json --budget", folder / "killed.run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words_of(f"{command} 120s"), cwd=folder, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        events = run / "events.jsonl"
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s and (not events.is_file() or events.read_bytes().count(b"\n") < 2):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    before = events.read_text().splitlines()
    assert len(before) >= 2
    assert "nothing more is searched" in done(f"{command} 1s --resume", folder).stderr
    done(f"{command} 15s --resume", folder)
    assert events.read_text().splitlines()[: len(before) - 1] == before[:-1]
    assert (folder / "killed.json").is_file()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("hsdag place own.onnx --partition-cpu 2 --bugdet 5s", r"No such option.*--budget"),
        ("hsdag place own.onx --partition-cpu 2", r"no such file: own\.onx"),
        ("hsdag place own.onnx --devices CPU,GPU.7", r"GPU\.7.*(CPU|devices)"),
        ("hsdag export nothing.json --format json -o x.json", r"no such file: nothing\.json"),
        ("hsdag export own.placement.json --format pyton -o x.py", r"perhaps 'python'"),
    ],
)
def test_a_mistake_is_one_line_that_helps(command: str, said: str, folder: Path) -> None:
    words = command.replace("--bugdet", "--budget")
    assert words_of(words)
    found = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stdout == ""
    *_, last = found.stderr.splitlines()
    assert found.stderr.count("hsdag: ") == 1
    assert re.search(f"hsdag: .*{said}", last), found.stderr
