"""Whether every export of ten models reads back to the placement, and whether the parts compute what our executor does.

Models of the zoo, and ONNX models that the package onnx ships, are placed on two CPU devices: contiguous stretches of
co-location sets in turn, and a few single sets drawn for the other device. Every format is written and read back by
code that knows only the format; the parts and the pipeline of Model Server are run over plain OpenVINO and compared
with the work-conserving executor, bit by bit. A number is how many ops the artefact tells the device of: formats that
copy what floats tell it of ops that run. Exit status 1 where anything differs.

Usage: python benchmarks/exports_round_trip.py [--models resnet50,light-squeezenet,...] [--stretches 6] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from machine import machine

import hsdag
from hsdag.ir import Placement, colocate, graph_of, load_model, parse_devices
from hsdag.ir.placement import DeviceRecord, ExecutorName, ModelRecord
from hsdag.models import save_model_files

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.exported import READERS, are_equal, placed_by, read_back, run_parts
from tests.model_server import Pipeline
from tests.runtime.openvino_backend.placing import random_inputs

MODELS = (
    "resnet50", "inception_v3", "bert_base_uncased", "llama-decoder", "light-densenet121", "light-inception_v2",
    "light-resnet50", "light-shufflenet", "light-squeezenet", "light-zfnet512",
)  # fmt: skip
DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in ("FAST", "SLOW"))
SUFFIX = {
    "affinity": ".json", "cpp": ".cpp", "csv": ".csv", "dot": ".dot", "ir": ".xml", "json": ".json", "ort": ".onnx",
    "ovms": "", "parts": "", "python": ".py",
}  # fmt: skip
EVERY_OP = frozenset({"affinity", "csv", "ir", "json", "ovms", "parts"})
"""Formats that tell the device of every op."""


def model_file(name: str, folder: Path) -> Path:
    """A model of the zoo as an IR, or the ONNX file of a light model."""
    if not name.startswith("light-"):
        return save_model_files(name, folder / f"{name}.xml")
    import onnx

    return Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name.removeprefix('light-')}.onnx"


def placement_of(model: ov.Model, stretches: int, executor: ExecutorName) -> Placement:
    """Stretches of co-location sets on FAST and SLOW in turn; every twentieth set is drawn."""
    graph, specs = graph_of(model), parse_devices(DEVICES)
    sets = colocate(graph).sets
    device = np.arange(sets.num_groups) * stretches // sets.num_groups % 2
    rng = np.random.default_rng(0)
    drawn = rng.random(sets.num_groups) < 0.05
    device[drawn] = rng.integers(0, 2, drawn.sum())
    return Placement(
        model=ModelRecord.of(graph),
        devices=[DeviceRecord.of(spec) for spec in specs],
        affinity={n: specs[device[s]].name for n, s in zip(graph.canonical_names, sets.labels, strict=True)},
        names=dict(zip(graph.canonical_names, graph.op_names, strict=True)),
        method="drawn",
        seed=0,
        objective="latency",
        executor=executor,
    )


def round_trip(name: str, stretches: int, folder: Path) -> dict[str, Any]:
    """The row of a model: by format how many ops read back, or what went wrong; and whether outputs are equal."""
    start = time.perf_counter()
    path = model_file(name, folder)
    model = load_model(path)
    placement = placement_of(model, stretches, "hetero")
    placed, row, first = placed_by(placement), {}, {}
    for kind in READERS:
        if kind == "ort" and path.suffix != ".onnx":
            continue
        files = hsdag.export(placement, kind, folder / f"{kind}{SUFFIX[kind]}", model if kind != "ort" else path).files
        first[kind] = files[0]
        told = read_back(kind, files[0], placement)
        expected = placed if kind != "ort" else device_by_tensor(model, placement)
        same = all(expected.get(op, told[op]) == told[op] for op in told)
        whole = set(told) == set(placed) if kind in EVERY_OP else len(told) > 0
        row[kind] = len(told) if same and whole else "differs"
    inputs = random_inputs(model)
    with hsdag.compile_work_conserving(model, placement) as compiled:
        outputs = list(compiled(inputs).to_tuple())
    named = dict(zip((port.get_any_name() for port in model.inputs), inputs, strict=True))
    answer = Pipeline(first["ovms"]).infer(named)
    parts = json.loads(first["parts"].read_text())["parts"]
    return {
        "model": name, "ops": len(placed), "slow": sum(d == "SLOW" for d in placed.values()), "cut into": len(parts),
        **row, "parts equal": are_equal(run_parts(first["parts"], named), outputs),
        "ovms equal": are_equal(list(answer.values()), outputs), "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def device_by_tensor(model: ov.Model, placement: Placement) -> dict[str, str]:
    """The device of the op that makes each named tensor."""
    ops = zip(model.get_ordered_ops(), placement.devices_of(graph_of(model)), strict=True)
    makers = [(node, device) for node, device in ops if node.get_type_name() != "Result"]
    return {name: device for node, device in makers for port in node.outputs() for name in port.get_names()}


def main() -> int:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--stretches", type=int, default=6, help="how often a model changes its device")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    columns = ("model", "ops", "slow", "cut into", *sorted(READERS), "parts equal", "ovms equal", "seconds")
    rows = []
    if not options.json:
        print(machine())
        print("| " + " | ".join(columns) + " |\n|---" + "|--:" * (len(columns) - 1) + "|")
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(round_trip(name, options.stretches, Path(folder)))
        if not options.json:
            print("| " + " | ".join(str(rows[-1].get(column, "-")) for column in columns) + " |", flush=True)
    good = sum("differs" not in row.values() and row["parts equal"] and row["ovms equal"] for row in rows)
    if options.json:
        print(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    else:
        print(f"{good} of {len(rows)} models read back to the same placement and compute the same")
    return 0 if good == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
