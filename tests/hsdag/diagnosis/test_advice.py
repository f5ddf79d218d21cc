"""What to run next: commands that hsdag takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from hsdag.diagnosis.examination import next_commands, shape_options
from hsdag.diagnosis.model import ModelReport
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.graph.reader import parse_shapes
from hsdag.ir.graph.scenario import parse_scenarios

FILE = Path("my model.xml")
GPUS = (*parse_devices("GPU.0,GPU.1"), DeviceSpec.parse("FAST=CPU[INFERENCE_NUM_THREADS=2]"))


def report(overflowing: tuple[str, ...] = ()) -> ModelReport:
    found: dict[str, Any] = {"name": "m", "ops": 1, "weight_bytes": 0, "unsupported": {}, "outputs": {}}
    return ModelReport(**found, variables=(), open_inputs=(), overflowing=overflowing, hetero=())


def devices_of(command: str) -> tuple[DeviceSpec, ...]:
    words = shlex.split(command)
    return parse_devices(words[words.index("--devices") + 1])


def test_devices_are_named_so_that_hsdag_reads_them_and_compute_in_f32_where_they_overflow() -> None:
    (command,) = next_commands(FILE, report(), GPUS, None, 4, [])
    assert shlex.split(command)[:3] == ["hsdag", "place", str(FILE)]
    assert devices_of(command) == GPUS
    (command,) = next_commands(FILE, report(overflowing=("GPU.1",)), GPUS, None, 4, [])
    hints = [spec.properties.get("INFERENCE_PRECISION_HINT") for spec in devices_of(command)]
    assert hints == [None, "f32", None]


def test_a_lone_cpu_is_to_be_divided_if_it_can_and_its_parts_are_asked_for_again() -> None:
    for threads, where in ((2, "--partition-cpu 2"), (1, "--devices CPU")):
        said = next_commands(None, None, parse_devices("CPU"), None, threads, [])
        assert said == (f"hsdag doctor MODEL {where}", f"hsdag place MODEL {where}")
    specs = (*parse_devices("CPU_0=CPU,CPU_1=CPU"), DeviceSpec.parse("GPU"))
    assert next_commands(FILE, report(), specs, 2, 4, [])[0].endswith(" --devices GPU --partition-cpu 2")


def test_shapes_are_given_again_and_asked_for_where_they_are_open() -> None:
    options = shape_options(parse_shapes("x[1,3]"), parse_scenarios(["y[2],z[3,4]@0.5"], None))
    assert options == ["--shape", "x[1,3]", "--data-shape", "y[2],z[3,4]@0.5"]
    assert shape_options({}, parse_scenarios((), "16,1+16@3")) == ["--tokens", "16,1+16@3"]
    (command,) = next_commands(FILE, report(), GPUS, None, 4, options[:2], ["y[1,2048]", "z[1,64]"])
    assert command.endswith(" --shape 'x[1,3],y[1,2048],z[1,64]'")
    assert next_commands(FILE, report(), (), None, 4, []) == ()
