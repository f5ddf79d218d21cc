"""Bad input: one clear line on stderr, exit code 2, nothing on stdout, nothing lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.cli.app import run
from hsdag.ir.graph.build import fingerprint, read_graph
from hsdag.ir.placement.placement import Placement

Complains = Callable[..., str]


@pytest.fixture
def complains(capsys: pytest.CaptureFixture[str]) -> Complains:
    """Runs the command line, checks the manner of the complaint, and gives its text."""

    def check(*arguments: object) -> str:
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        assert code == 2, captured
        assert captured.out == ""
        lines = [line for line in captured.err.splitlines() if line.startswith("hsdag: ")]
        assert len(lines) == 1, captured.err
        assert captured.err.endswith(lines[0] + "\n")
        assert "Traceback" not in captured.err
        return lines[0]

    return check


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    x = opset13.parameter(ov.PartialShape([-1, 8]), np.float32, name="x")
    path = tmp_path / "dynamic.xml"
    ov.save_model(ov.Model([opset13.result(opset13.relu(x))], [x], "dynamic"), path)
    return path


def placement_for(model: Path, device: str = "CPU", plugin: str = "CPU") -> Placement:
    graph = read_graph(model)
    return Placement.model_validate(
        {
            "model": {"name": model.stem, "fingerprint": fingerprint(graph)},
            "devices": [{"name": device, "plugin": plugin, "properties": {}}],
            "affinity": dict.fromkeys(graph.canonical_names, device),
            "method": "best-device",
            "seed": 0,
            "objective": "latency",
            "executor": "hetero",
        }
    )


@pytest.mark.parametrize("command", ["inspect", "place", "bench"])
def test_a_missing_file(complains: Complains, tmp_path: Path, command: str) -> None:
    assert "no such file" in complains(command, tmp_path / "none.xml")


@pytest.mark.parametrize("command", ["inspect", "place", "bench"])
def test_a_truncated_xml(complains: Complains, tiny_resnet: Path, tmp_path: Path, command: str) -> None:
    text = tiny_resnet.read_bytes()
    (tmp_path / "cut.xml").write_bytes(text[: len(text) // 2])
    (tmp_path / "cut.bin").write_bytes(tiny_resnet.with_suffix(".bin").read_bytes())
    assert "truncated" in complains(command, tmp_path / "cut.xml")


@pytest.mark.parametrize("change", [-8, 8])
def test_a_bin_of_the_wrong_size(complains: Complains, tiny_resnet: Path, tmp_path: Path, change: int) -> None:
    weights = tiny_resnet.with_suffix(".bin").read_bytes()
    (tmp_path / "m.xml").write_bytes(tiny_resnet.read_bytes())
    (tmp_path / "m.bin").write_bytes(weights[:change] if change < 0 else weights + bytes(change))
    message = complains("place", tmp_path / "m.xml")
    assert f"has {len(weights) + change} bytes" in message
    assert f"needs {len(weights)}" in message


@pytest.mark.parametrize("name", ["text.xml", "text.onnx", "text.bin"])
def test_what_is_no_model(complains: Complains, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("this is a shopping list: eggs, flour, sugar")
    assert "is not a" in complains("place", tmp_path / name)


def test_dynamic_shapes_without_shape(complains: Complains, dynamic: Path) -> None:
    assert "fix them with --shape 'x[...]'" in complains("place", dynamic)
    assert "a shape is given for input 'y'" in complains("place", dynamic, "--shape", "y[1,8]")
    assert "is not of the form" in complains("place", dynamic, "--shape", "x(1,8)")
    assert "at least 1" in complains("place", dynamic, "--shape", "x[0,8]")


def test_an_unknown_device(complains: Complains, tiny_resnet: Path) -> None:
    assert "unknown device 'TPU'" in complains("place", tiny_resnet, "--devices", "CPU,TPU")
    assert "unknown device 'TPU'" in complains("bench", tiny_resnet, "--device", "TPU")
    assert "unknown device 'TPU'" in complains("inspect", tiny_resnet, "--devices", "TPU")


def test_a_device_that_fails_to_load(complains: Complains, tiny_resnet: Path) -> None:
    message = complains("place", tiny_resnet, "--devices", "CPU,G=GPU[]")
    assert "'G' (GPU) fails to load" in message


def test_a_device_with_a_property_of_no_value(complains: Complains, tiny_resnet: Path) -> None:
    message = complains("place", tiny_resnet, "--devices", "CPU,A=CPU[INFERENCE_NUM_THREADS=many]")
    assert "'A' (CPU) fails to load" in message


@pytest.mark.parametrize("budget", ["0", "-3s", "0s"])
def test_a_budget_of_nothing(complains: Complains, tiny_resnet: Path, budget: str) -> None:
    assert "--budget must be more than zero" in complains("place", tiny_resnet, f"--budget={budget}")


def test_an_output_that_cannot_be_written(complains: Complains, tiny_resnet: Path, tmp_path: Path) -> None:
    out = tmp_path / "none" / "out.json"
    assert "there is no folder" in complains("place", tiny_resnet, "--partition-cpu", 2, "-o", out)
    assert "there is no folder" in complains("models", "build", "tiny_resnet", "-o", tmp_path / "none" / "m.xml")


def test_a_model_is_never_overwritten(complains: Complains, tiny_resnet: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    placement_for(tiny_resnet).save(path)
    before = tiny_resnet.read_bytes()
    export = ("export", path, "--model", tiny_resnet)
    assert "is the model itself" in complains(*export, "--format", "ir", "-o", tiny_resnet)
    assert "is the model itself" in complains(*export, "--format", "python", "-o", tiny_resnet.with_suffix(".py"))
    assert "is the model itself" in complains("place", tiny_resnet, "-o", tiny_resnet)
    assert tiny_resnet.read_bytes() == before


def test_an_output_that_is_its_own_run_folder(complains: Complains, tiny_resnet: Path, tmp_path: Path) -> None:
    assert "--run" in complains("place", tiny_resnet, "-o", tmp_path / "out.run")


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_folder_is_no_model(complains: Complains, name: str) -> None:
    assert "is a folder" in complains("place", name)


def test_a_target_that_does_not_run(complains: Complains, tiny_resnet: Path) -> None:
    assert "no candidate ran the model" in complains("bench", tiny_resnet, "--device", "AUTO:XPU", "--time", "0.3s")


def test_a_trace_of_what_is_no_device(complains: Complains, tiny_resnet: Path, tmp_path: Path) -> None:
    files = ("--trace", tmp_path / "trace.json", "--time", "0.3s")
    assert "AUTO:CPU is no device" in complains("bench", tiny_resnet, "--device", "AUTO:CPU", *files)


def test_a_placement_of_another_model(complains: Complains, tiny_resnet: Path, tiny_bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    placement_for(tiny_bert).save(path)
    assert "is for model 'tiny_bert'" in complains("bench", tiny_resnet, "--placement", path)
    export = ("export", path, "--format", "ir", "-o", tmp_path / "x.xml", "--model", tiny_resnet)
    assert "is for model 'tiny_bert'" in complains(*export)


def test_a_placement_that_names_an_absent_device(complains: Complains, tiny_resnet: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    placement_for(tiny_resnet, "GPU.1", "GPU.1").save(path)
    assert "unknown device 'GPU.1'" in complains("bench", tiny_resnet, "--placement", path)


def test_a_damaged_placement_names_the_place_inside(complains: Complains, tiny_resnet: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    document = json.loads(placement_for(tiny_resnet).to_json())
    document["devices"][0]["plugin"] = 3
    path.write_text(json.dumps(document))
    assert "devices[0].plugin" in complains("export", path, "--format", "csv", "-o", tmp_path / "x.csv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "magic"), "choose one of auto, best-device"),
        (("--method", "hsdag", "--preset", "magic"), "choose one of default, paper"),
        (("--objective", "heat"), "choose one of energy, latency, memory, throughput"),
        (("--executor", "magic"), "choose one of hetero"),
        (("--partition-cpu", "1"), "at least 2"),
        (("--partition-cpu", "4096"), "threads to share"),
        (("--seed", "x"), "valid int"),
        (("--resume", "--partition-cpu", "2"), "nothing to resume"),
        (("--resume",), "no search to resume"),
        (("--shape", "images[99999999999999999999,3,32,32]"), "below 2^31"),
        (("--input", "none.npz"), "no such file"),
    ],
)
def test_options_outside_their_range(
    complains: Complains, tiny_resnet: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    out = ("-o", tmp_path / "out.json")
    assert message in complains("place", tiny_resnet, *out, *arguments)


def test_an_unknown_model_of_the_zoo(complains: Complains, tmp_path: Path) -> None:
    assert "tiny_resnet" in complains("models", "build", "alexnet", "-o", tmp_path / "m.xml")


def test_an_unknown_command_and_a_missing_argument(complains: Complains) -> None:
    assert "No such command" in complains("plaice")
    assert "Missing argument" in complains("place")
