"""What a deployment runs needs neither torch, solvers nor a compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.reader import load_model
from tests.placements import halves

BLOCKED = """
import sys
class Blocking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocking())
"""
SEARCHING = {"torch", "ortools", "numba", "networkx", "rich", "typer", "psutil"}


def run_without(blocked: set[str], code: str, *arguments: object) -> str:
    """What a fresh interpreter prints in which some packages cannot be imported."""
    command = [sys.executable, "-W", "error", "-c", BLOCKED.format(blocked=blocked) + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_placements_are_run_and_exported_without_what_searches_need(tiny_resnet: Path, tmp_path: Path) -> None:
    """Of tiny_resnet over two devices, the second one from the middle on."""
    graph = graph_of(load_model(tiny_resnet))
    properties = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    names = dict(zip(graph.canonical_names, graph.op_names, strict=True))
    devices = [DeviceSpec(name, "CPU", properties) for name in ("ONE", "TWO")]
    placed = tmp_path / "placement.json"
    halves(graph, devices, executor="work-conserving", names=names).save(placed)
    code = (
        "import hsdag, numpy as np, openvino as ov\n"
        "file, model, folder = sys.argv[1:]\n"
        "placement, core = hsdag.Placement.load(file), ov.Core()\n"
        "ones = np.ones((1, 3, 32, 32), dtype=np.float32)\n"
        "print(placement.compile(core, core.read_model(model))([ones])[0].ravel().tolist())\n"
        "print(hsdag.compile_work_conserving(model, placement)([ones])[0].ravel().tolist())\n"
        "import hsdag.exports.library; hsdag.exports.library.COMPILERS = ()\n"
        "print(hsdag.export(file, 'openvino', f'{folder}/out', model).files[0].read_text().count('HsdagPlaced'))\n"
    )
    first, second, number = run_without(SEARCHING, code, placed, tiny_resnet, tmp_path).splitlines()
    whole = ov.Core().compile_model(tiny_resnet, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    expected = whole([np.ones((1, 3, 32, 32), dtype=np.float32)])[0].ravel()
    for line in (first, second):
        np.testing.assert_allclose(eval(line), expected, rtol=1e-4, atol=1e-5)
    assert int(number) > 0  # the op that holds both parts
