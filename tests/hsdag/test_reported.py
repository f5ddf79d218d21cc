"""Models as they were reported, on two devices: they compute what one device does, or are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

import hsdag
from hsdag.cli.app import run
from hsdag.exports import export_formats
from hsdag.ir.device import parse_devices
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.placement import Placement
from tests.hsdag.reported import REPORTS
from tests.placements import by_hand

SINGLE = {"INFERENCE_PRECISION_HINT": "f32"}
DEVICES = "A=CPU[INFERENCE_PRECISION_HINT=f32],B=CPU[INFERENCE_PRECISION_HINT=f32]"
SHAPES = {"openvinotoolkit/model_server#1207": {"x": (3, 4, 16)}}
REFUSED_BY_HETERO = {"openvinotoolkit/openvino#36344": r"shape=\[1\.\.,4\]\) and the tensor \(shape=\(0\.4\)\)"}
"""It hands on what is of at least one row in a tensor that begins without any (2026.4.1)."""
SUFFIXES = {"ort": ".onnx"}


def read(name: str, folder: Path) -> tuple[Path, ov.Model]:
    path = REPORTS[name](folder)
    return path, load_model(path, SHAPES.get(name), guarded=False)


def outputs(compiled: Any, model: ov.Model) -> list[NDArray[Any]]:
    """By index, for fixed random inputs: zeros and ones of integers, and strings of two lengths."""
    rng = np.random.default_rng(1)
    request = compiled.create_infer_request()
    inputs: dict[int, Any] = {}
    for k, port in enumerate(model.inputs):
        sizes, type_ = list(port.get_shape()), port.get_element_type()
        values = rng.standard_normal(sizes) if type_.is_real() else rng.integers(0, 2, sizes)
        inputs[k] = np.array(["ab", "c"]) if type_ == ov.Type.string else values.astype(type_.to_dtype())
    found = request.infer(inputs)
    return [np.array(found[k]) for k in range(len(model.outputs))]


def check_outputs(model: ov.Model, placement: Placement) -> None:
    """Compare a placement with one device in single precision."""
    expected = outputs(ov.Core().compile_model(model.clone(), "CPU", SINGLE), model)
    for right, found in zip(expected, outputs(hsdag.compile_model(model, placement), model), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)


def alternating(model: ov.Model, executor: str) -> Placement:
    """Every second set of ops on the other device."""
    graph = graph_of(model.clone())
    device_of = ["AB"[s % 2] for s in colocate(graph).sets.labels.tolist()]
    return by_hand(graph, parse_devices(DEVICES), device_of, executor=executor)


@pytest.mark.parametrize("name", REPORTS)
def test_a_reported_model_computes_the_same_where_every_second_op_is_on_another_device(
    name: str, tmp_path: Path
) -> None:
    _, model = read(name, tmp_path)
    check_outputs(model, alternating(model, "work-conserving"))


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_hetero_computes_the_same_or_refuses_a_reported_model(name: str, tmp_path: Path) -> None:
    _, model = read(name, tmp_path)
    placement = alternating(model, "hetero")
    if name in REFUSED_BY_HETERO:
        with pytest.raises(RuntimeError, match=REFUSED_BY_HETERO[name]):
            check_outputs(model, placement)
    else:
        check_outputs(model, placement)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_every_command_answers_for_a_reported_model_or_refuses_it_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = read(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    shape = ["--shape", "x[3,4,16]"] if name in SHAPES else []
    search = ["--devices", DEVICES, *shape]
    short = ["--infer-precision", "f32", "--budget", "2s"]  # the whole CPU competes, too

    def works(*words: object) -> bool:
        code = run([*map(str, words)])
        said = capsys.readouterr().err.strip().splitlines()
        assert code == 0 or (code == 2 and sum(line.startswith("hsdag: ") for line in said) == 1), (words, said)
        return code == 0

    assert works("inspect", path, *shape)
    found = ["placed.json"] if works("place", path, *search, *short, "-o", "placed.json") else []
    found += ["divided.json"] if works("shard", path, *search, "-o", "divided.json") else []
    for file in found:
        check_outputs(model, Placement.load(tmp_path / file))
        for kind in export_formats():
            out = tmp_path / f"{file}-{kind}{SUFFIXES.get(kind, '')}"
            works("export", file, "--model", path, "--format", kind, "-o", out)
        assert works("bench", path, "--placement", file, "--time", "0.2s", *shape)
