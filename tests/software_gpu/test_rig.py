"""The software GPUs themselves: two devices, right results in both precisions, and programs that are built once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import openvino as ov, sys, numpy as np
core = ov.Core()
for gpu in ("GPU.0", "GPU.1"):
    compiled = core.compile_model(sys.argv[1], gpu, {"INFERENCE_PRECISION_HINT": "f32"})
    compiled([np.ones(port.shape, np.float32) for port in compiled.inputs])
"""


def test_programs_are_built_once_and_processes_end_well(tiny_resnet: Path, tmp_path: Path) -> None:
    environment = os.environ | {"SOFTWARE_GPU_PROGRAMS": str(tmp_path)}
    written = []
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", CHILD, str(tiny_resnet)], env=environment, check=False)
        assert ended.returncode == 0
        written.append({path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()})
    assert written[0]
    assert written[0] == written[1]


def test_a_device_has_the_memory_that_it_is_given(tmp_path: Path) -> None:
    code = "import openvino as ov; print(ov.Core().get_property('GPU.1', 'GPU_DEVICE_TOTAL_MEM_SIZE'))"
    environment = os.environ | {"SOFTWARE_GPU_MEMORY": "123456789"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "123456789"
