"""Placement files: round trips, what is refused and how, and atomic writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.base.errors import FileFormatError, PlacementError
from hsdag.ir.graph.build import fingerprint, graph_of
from hsdag.ir.placement.homes import op_devices
from hsdag.ir.placement.placement import Placement

FINGERPRINT = "sha256:" + "0" * 64


def document() -> dict[str, Any]:
    """A placement with every field."""
    latency = {"median_s": 0.01, "mean_s": 0.011, "p95_s": 0.02, "runs": 50, "measured": True}
    return {
        "format": "hsdag-placement",
        "version": 2,
        "model": {"name": "m", "fingerprint": FINGERPRINT, "input_shapes": {"x": [1, 3], "y": []}},
        "devices": [
            {"name": "CPU", "plugin": "CPU", "properties": {}},
            {"name": "SLOW", "plugin": "CPU", "properties": {"INFERENCE_NUM_THREADS": "1"}},
        ],
        "affinity": {"a": "CPU", "b": "SLOW", 'ü\n"': "CPU"},
        "names": {"a": "first", "b": ""},
        "method": "heft",
        "seed": 3,
        "objective": "latency",
        "executor": "hetero",
        "latency": latency,
        "baselines": {"CPU": {**latency, "measured": False}},
        "speedup": {"versus": "CPU", "ratio": 1.2, "ci95": [1.1, 1.3]},
        "priority": {"a": 0, "b": 1},
        "created_with": {"openvino": "2026"},
    }


def test_a_document_survives_reading_and_writing() -> None:
    assert json.loads(Placement.from_json(json.dumps(document())).to_json()) == document()


REGION = {"scheme": "rows", "ops": ["c"], "axis": {}, "shares": {"CPU": [0, 1], "SLOW": [1, 2]}}
COPY, PIPELINE = {"device": "CPU", "requests": 1}, {"affinity": {"a": "CPU", "b": "CPU"}, "requests": 1}
SPREAD = "'shards' and 'copies' need version 3, and an executor that runs devices side by side"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": "other"}, "'format' is not 'hsdag-placement'"),
        ({"version": 4}, "'version' is 4, but this hsdag reads 2 and 3"),
        ({"model.fingerprint": "md5:0"}, "model.fingerprint: "),
        ({"model.input_shapes.x": [1, "a"]}, r"model.input_shapes.x\[1\]: "),
        ({"devices.1.plugin": ""}, r"devices\[1\].plugin: "),
        ({"devices.1.name": "CPU"}, "two devices have the same name"),
        ({"affinity.b": "GPU"}, "affinity of op 'b' names device 'GPU', which 'devices' does not list"),
        ({"affinity": {}}, "affinity: it names no op, and there are no 'shards'"),
        ({"objective": ""}, "objective: .*$"),
        ({"executor": "magic"}, "executor: "),
        ({"latency.median_s": 0}, "latency.median_s: .*greater than 0$"),
        ({"latency.p95_s": float("nan"), "surprise": 1}, r"latency.p95_s: .* \(and 1 more\)"),
        ({"data_shapes": ["x"]}, "data_shapes: data_shape 'x' is not of the form"),
        ({"shards": [{**REGION, "shares": {"GPU": [0, 1]}}]}, "a share of 'c' is for device 'GPU', not in 'devices'"),
        ({"shards": [REGION], "version": 3}, SPREAD),
        ({"shards": [REGION], "executor": "cuda"}, SPREAD),
        ({"copies": [COPY], "affinity": {}, "version": 3}, SPREAD),
        ({"copies": [COPY], "version": 3, "executor": "cuda"}, "or there are 'copies' as well"),
        ({"copies": [COPY, PIPELINE]}, "'copies' need devices of their own, of those in 'devices'"),
        ({"copies": [{**COPY, "device": "GPU"}]}, "'copies' need devices of their own, of those in 'devices'"),
        ({"copies": [{**PIPELINE, "device": "SLOW"}]}, "each of the 'copies' needs a device, or an affinity"),
        ({"copies": [{"requests": 1}]}, "each of the 'copies' needs a device, or an affinity"),
    ],
)
def test_a_bad_document_is_refused_with_the_path_inside_it(changes: dict[str, object], complaint: str) -> None:
    bad = document()
    for path, value in changes.items():
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        inner: Any = bad
        for part in parents:
            inner = inner[part]
        inner[last] = value
    with pytest.raises(FileFormatError, match=f"^p.json: .*{complaint}") as caught:
        Placement.from_json(json.dumps(bad), "p.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"format":\n', "not JSON .*line 2"),
        ("[]", "not a placement file"),
        ("<net>", "not JSON .*; a placement file is expected"),
        ('{"a": "CPU", "b": "GPU"}', "'format' is not 'hsdag-placement'; this is not a placement file"),
        ("[" * 100_000, "not JSON"),
        ('{"format": ' + "1" * 5000 + "}", "not JSON"),
    ],
    ids=["cut", "list", "xml", "map", "nested", "digits"],
)
def test_text_that_is_no_document_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(FileFormatError, match=complaint):
        Placement.from_json(text)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"no such file: .*p\.json"):
        Placement.load(tmp_path / "p.json")
    (tmp_path / "p.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match=r"p\.json cannot be read"):
        Placement.load(tmp_path / "p.json")


@pytest.mark.parametrize("executor", ["hetero", "work-conserving", "cuda"])
def test_ops_that_keep_a_variable_share_a_device_of_openvino(executor: str) -> None:
    """The CUDA engine copies whatever is read on another device."""
    x = op.parameter([1, 2], np.float32, name="x")
    read = op.read_value(op.constant(np.ones((1, 2), np.float32)), "state", np.float32, [1, 2], name="read")
    total = op.add(read, x, name="total")
    graph = graph_of(ov.Model([op.result(total)], [op.assign(total, "state")], [x], "m"))
    model = {"name": "m", "fingerprint": fingerprint(graph)}
    affinity = {
        key: "SLOW" if name == "read" else "CPU"
        for key, name in zip(graph.canonical_names, graph.op_names, strict=True)
    }
    placement = Placement.model_validate({**document(), "model": model, "affinity": affinity, "executor": executor})
    if executor == "cuda":
        assert op_devices(placement, graph).count("SLOW") == 1
    else:
        with pytest.raises(PlacementError, match=r"must share a device, for they keep variable 'state'"):
            op_devices(placement, graph)
