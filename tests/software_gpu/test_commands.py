"""Every command on the CPU and two GPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.placement.placement import Placement
from hsdag.runtime.executor.compiling import compile_placed
from tests.hsdag.answers import answer
from tests.software_gpu.conftest import CPU, GPU_0, GPU_1

pytestmark = pytest.mark.usefixtures("short_comparisons")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two branches over an image: convolutions and a wide pool, and tangents of arc tangents."""
    path = tmp_path_factory.mktemp("mixed") / "mixed.xml"
    image = opset13.parameter([1, 16, 32, 32], np.float32, name="image")
    filtered = chain = opset13.relu(image, name="stem")
    weight = (0.1 * np.random.default_rng(0).standard_normal((16, 16, 3, 3))).astype(np.float32)
    for k in range(3):
        ones = [1, 1]
        filtered = opset13.convolution(filtered, weight, ones, ones, ones, ones, name=f"convolution{k}")
    filtered = opset13.avg_pool(filtered, [1, 1], [7, 7], [7, 7], [15, 15], False, name="pool")
    for k in range(6):
        chain = (opset13.tan if k % 2 else opset13.atan)(chain, name=f"function{k}")
    answer = opset13.reduce_mean(opset13.add(filtered, chain), np.array([2, 3]), name="answer")
    ov.save_model(ov.Model([opset13.result(answer)], [image], "mixed"), path, compress_to_fp16=False)
    return path


def test_both_gpus_are_listed_and_one_is_asked(capsys: pytest.CaptureFixture[str], mixed: Path) -> None:
    found = {device["name"]: device for device in answer(capsys, "devices")["openvino"]}
    assert {"CPU", "GPU.0", "GPU.1"} <= set(found)
    assert "Software GPU" in found["GPU.1"]["full_name"]
    document = answer(capsys, "inspect", mixed, "--devices", "CPU,GPU.1")
    assert document["unsupported"] == {"CPU": [], "GPU.1": []}


@pytest.mark.parametrize(
    ("devices", "executor", "reward", "method"),
    [
        (f"{CPU},{GPU_0}", "hetero", "hybrid", "auto"),
        (f"{GPU_0},{GPU_1}", "work-conserving", "measured", "hsdag"),
        (f"{CPU},{GPU_0},{GPU_1}", "hetero", "simulated", "auto"),
        ("CPU,GPU.0", "work-conserving", "hybrid", "auto"),  # in the half precision that the GPU prefers
    ],
)
def test_a_model_is_placed_measured_and_exported(
    capsys: pytest.CaptureFixture[str],
    mixed: Path,
    tmp_path: Path,
    devices: str,
    executor: str,
    reward: str,
    method: str,
) -> None:
    out = tmp_path / "placement.json"
    options = ["--executor", executor, "--reward", reward, "--method", method, "--max-evaluations", "6"]
    document = answer(capsys, "place", mixed, "--devices", devices, "--budget", "20s", *options, "-o", out)
    assert document["verdict"]["difference"]["max_relative"] <= document["verdict"]["tolerance"]
    single = [row for row in document["rows"] if sum(n > 0 for n in row["ops"].values()) == 1]
    chosen = next(row for row in document["rows"] if row["is_answer"])
    assert chosen in single or chosen["ci95"][0] > 1.0
    placement, model = Placement.load(out), ov.Core().read_model(mixed)
    inputs = [np.random.default_rng(0).standard_normal(tuple(model.inputs[0].shape)).astype(np.float32)]
    expected = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)[0]
    found = (compile_placed(model, placement) if executor != "hetero" else placement.compile(ov.Core(), model))(inputs)
    assert np.abs(found[0] - expected).max() <= document["verdict"]["tolerance"] * np.abs(expected).max()
