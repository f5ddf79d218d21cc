"""Export to an IR and to programs: the IR, the Python script and the C++ program are run against the real OpenVINO."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset13 as op

from hsdag.exports.base import export_placement
from hsdag.exports.programs import literal
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.placement import CopyRecord, Placement
from tests.exported import Alternating, Place, random_inputs
from tests.hsdag.ir.shards.random_shards import outputs_of
from tests.placements import by_hand

PACKAGE = Path(ov.__file__).parent


def run_script(path: Path, *arguments: object, is_isolated: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *["-I"] * is_isolated, str(path), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def submodels(core: ov.Core, placement: Placement, model: ov.Model) -> str:
    return str(placement.compile(core, model).get_property("HETERO_NUMBER_OF_SUBMODELS"))


def imported(path: Path) -> Any:
    """A script as a module."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("executor", ["hetero", "work-conserving"])
def test_the_script_takes_inputs_and_gives_outputs_from_files_and_in_python(
    tmp_path: Path, core: ov.Core, model: ov.Model, alternating: Alternating, executor: str
) -> None:
    placement = alternating(model).model_copy(update={"executor": executor})
    script, *_ = export_placement(placement, "python", tmp_path / "run.py", model)
    inputs = random_inputs(model)
    expected = outputs_of(model, [*inputs.values()])
    np.savez(tmp_path / "x.npz", **inputs)  # type: ignore[arg-type]
    is_isolated = executor == "hetero"
    done = run_script(script, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz", is_isolated=is_isolated)
    assert done.stderr == ""
    assert re.match(r"latency_s: \d+\.\d+\n", done.stdout)
    found, program = np.load(tmp_path / "y.npz"), imported(script)
    inside = program.run(inputs)
    if is_isolated:
        number = program.compiled_model().get_property("HETERO_NUMBER_OF_SUBMODELS")
        assert str(number) == submodels(core, placement, model)
        names = set(re.findall(r"^(?:import|from) (\w+)", script.read_text(), re.MULTILINE))
        assert names - sys.stdlib_module_names == {"numpy", "openvino"}
        ov.save_model(model, tmp_path / "unplaced.xml", compress_to_fp16=False)
        done = run_script(script, tmp_path / "unplaced.xml")
        assert done.returncode == 1
        assert re.fullmatch(r"the model's ops are not those of the affinity map: \d+ differ, .*\n", done.stderr)
    assert [*inside] == found.files
    for array, other, right in zip(found.values(), inside.values(), expected, strict=True):
        np.testing.assert_allclose(array, right, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(array, other)


def test_side_by_side_a_program_is_for_one_device_alone_and_has_no_table_of_ops(
    tmp_path: Path, model: ov.Model, place: Place, alternating: Alternating
) -> None:
    split, placement = (
        placed.model_copy(update={"executor": "work-conserving"})
        for placed in (alternating(model), place(model, lambda _: "SLOW"))
    )
    with pytest.raises(OptionError, match="needs the model that such a placement cuts into parts"):
        export_placement(split, "cpp", tmp_path / "run.cpp")
    script, *_ = export_placement(placement, "python", tmp_path / "run.py", model)
    source, *_ = export_placement(placement, "cpp", tmp_path / "run.cpp", model)
    assert "AFFINITY = {\n}\n" in script.read_text()
    assert "kAffinity = {\n};\n" in source.read_text()
    inputs = random_inputs(model)
    (found,) = imported(script).run(inputs).values()
    np.testing.assert_allclose(found, outputs_of(model, [*inputs.values()])[0], rtol=1e-3, atol=1e-4)


def test_a_script_keeps_state_until_it_is_told_to_begin_anew_and_makes_up_inputs_of_open_sizes(tmp_path: Path) -> None:
    x = op.parameter([-1, 2], np.int64, name="x")
    read = op.read_value(op.constant(np.ones((1, 2), np.float32)), "sum", np.float32, [1, 2])
    total = op.add(op.convert(op.reduce_sum(x, op.constant([0]), True), np.float32), read)
    model = ov.Model([op.result(total, name="total")], [op.assign(total, "sum")], [x], "counter")
    graph = graph_of(model)
    devices, x_shape = [DeviceSpec("CPU", "CPU")], ("x[4,2]",)
    placement = by_hand(graph, devices, ["CPU"] * graph.num_ops, data_shapes=x_shape)
    program = imported(export_placement(placement, "python", tmp_path / "run.py", model)[0])
    assert program.random_inputs()["x"].tolist() == [[0, 0]]
    sums = [next(iter(program.run({"x": np.ones((n, 2), np.int64)}).values())).tolist() for n in (1, 3)]
    program.request().reset_state()
    assert [*sums, next(iter(program.run(program.random_inputs()).values())).tolist()] == [[[2, 2]], [[5, 5]], [[1, 1]]]


def test_without_the_model_the_script_takes_the_original(tmp_path: Path, place: Place) -> None:
    x = op.parameter([4], np.float32, name="é\n'x'")
    model = ov.Model([op.relu(op.tanh(x, name="t"), name="r")], [x], "m")
    ov.serialize(model, tmp_path / "m.xml", tmp_path / "m.bin")
    (script,) = export_placement(place(model, lambda s: ("FAST", "SLOW")[s % 2]), "python", tmp_path / "run.py")
    assert str(imported(script).compiled_model().get_property("HETERO_NUMBER_OF_SUBMODELS")) == "2"


def copied(placed: Placement, **changes: Any) -> Placement:
    """The model whole on each device, with two requests."""
    copies = [CopyRecord(device=device.name, requests=2) for device in placed.devices]
    new = {"version": 3, "affinity": {}, "copies": copies, "executor": "work-conserving", "priority": None}
    return Placement.model_validate({**placed.model_dump(), **new, **changes})


def compiler() -> str:
    found = shutil.which("g++") or shutil.which("c++")
    if found is None or not (PACKAGE / "include").exists():
        pytest.skip("no C++ compiler, or an OpenVINO without headers")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hetero", "whole", "parts", "copies"])
def test_the_program_compiles_and_runs_the_placed_model(
    tmp_path: Path, core: ov.Core, model: ov.Model, alternating: Alternating, place: Place, kind: str
) -> None:
    placement = place(model, lambda _: "SLOW") if kind == "whole" else alternating(model)
    placement = placement.model_copy(update={"executor": "hetero" if kind == "hetero" else "work-conserving"})
    given = copied(placement) if kind == "copies" else placement
    source, xml, *_ = export_placement(given, "cpp", tmp_path / "run.cpp", model)
    library = next((PACKAGE / "libs").glob("libopenvino.so.*"))
    program = tmp_path / "run"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-isystem", str(PACKAGE / "include"), f"-Wl,-rpath,{library.parent}"]

    def ran(*command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=120)

    built = ran(compiler(), *flags, source, library, "-o", program)
    assert (built.stderr, built.returncode) == ("", 0)
    done = ran(program, xml)
    assert done.stderr == ""
    head = {"hetero": "submodels: ", "copies": "inferences_per_s: "}.get(kind, "latency_s: ")
    assert done.stdout.startswith(f"{head}{submodels(core, placement, model)}\n" if kind == "hetero" else head)
    inputs, files = random_inputs(model), []
    for k, (name, array) in enumerate(inputs.items()):
        if k % 2:
            array.tofile(tmp_path / f"{k}.raw")
        else:
            np.save(tmp_path / f"{k}.npy", array)
        files.append(f"{name}={tmp_path / (f'{k}.raw' if k % 2 else f'{k}.npy')}")
    assert ran(program, xml, *files, "--output", tmp_path).stderr == ""
    for port, right in zip(model.outputs, outputs_of(model, [*inputs.values()]), strict=True):
        name = port.get_any_name() if port.get_names() else port.get_node().get_friendly_name()
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), right, rtol=1e-3, atol=1e-4)
    wrong = tmp_path / "wrong.npy"
    np.save(wrong, next(iter(inputs.values())).astype(np.float64))
    first = next(iter(inputs))
    for argument, why in ((f"{first}={wrong}", "does not hold elements of f32"), ("nothing=x", "no file is given for")):
        done = ran(program, xml, argument)
        assert (done.returncode, why in done.stderr) == (1, True), done.stderr


@given(text=st.text(st.characters(codec="utf-8")))
def test_a_cpp_literal_holds_the_utf8_bytes(text: str) -> None:
    shown = literal(text)[1:-1]
    assert set(shown) <= {chr(c) for c in range(32, 127)} - {'"', "?"}
    found = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), shown)
    assert found.encode("latin-1") == text.encode()
    assert literal(" a~") == '" a~"'


def test_copies_are_exported_to_a_script_an_ir_and_instances_of_model_server(
    tmp_path: Path, core: ov.Core, model: ov.Model, alternating: Alternating
) -> None:
    placed = alternating(model)
    placement = copied(placed)
    copies = placement.copies or ()
    script, *_ = export_placement(placement, "python", tmp_path / "run.py", model)
    program = imported(script)
    assert program.run(program.random_inputs())
    assert len(program.compiled_model().copies) == len(copies)
    xml, _ = export_placement(placement, "ir", tmp_path / "copied.xml", model)
    assert Placement.from_model(core.read_model(xml)) == placement
    config, *_ = export_placement(placement, "ovms", tmp_path / "served", model)
    entries = [entry["config"] for entry in json.loads(config.read_text())["model_config_list"]]
    assert [entry["nireq"] for entry in entries] == [2] * len(copies)
    assert [entry["target_device"] for entry in entries] == [device.plugin for device in placed.devices]
    assert all((tmp_path / "served" / entry["base_path"] / "1" / "model.xml").is_file() for entry in entries)
    beside = copied(placed, copies=[{"affinity": placed.affinity, "requests": 1}])
    for format_, name in (("ovms", "no"), ("cpp", "no.cpp")):
        with pytest.raises(OptionError, match="a pipeline is beside copies"):
            export_placement(beside, format_, tmp_path / name, model)
    for format_ in ("csv", "parts", "affinity", "dot"):
        with pytest.raises(OptionError, match="cannot say that a model is copied"):
            export_placement(placement, format_, tmp_path / "no", model)
