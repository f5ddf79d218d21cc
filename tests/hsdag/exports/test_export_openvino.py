"""Folders of --format openvino, run by plain OpenVINO with the extension library, compute what the model does."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset13 as op

from hsdag.base.errors import OptionError
from hsdag.exports import library
from hsdag.exports.base import ModelSource, export_placement
from hsdag.exports.documents import submodels
from hsdag.exports.usage import literal
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.placement import Placement
from hsdag.models import build_model
from tests.conftest import made_once
from tests.exported import Alternating, awkward, random_inputs
from tests.placements import by_hand
from tests.stateful import generate, placement_of, split_after, unsplit

PACKAGE = Path(ov.__file__).parent
COMPILER = shutil.which("g++") or shutil.which("c++")
F32 = {"INFERENCE_PRECISION_HINT": "f32"}

needs_compiler = pytest.mark.skipif(
    COMPILER is None or not (PACKAGE / "include").exists(), reason="no C++ compiler, or an OpenVINO without headers"
)
KINDS = ("hetero", "whole", "parts", "copies", "beside")


@pytest.fixture(scope="module", autouse=True)
def one_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled once for all workers of the tests."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HSDAG_CACHE_DIR", str(folder))
            library.write_library(tmp_path_factory.mktemp("library"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HSDAG_CACHE_DIR", str(made_once(tmp_path_factory, "library", make)))
        yield


def given_as(kind: str, placed: Placement) -> Placement:
    """A placement over two devices, as one that each kind of folder is made of."""
    if kind == "hetero":
        return placed
    changes: dict[str, Any] = {"executor": "work-conserving"}
    if kind == "whole":
        changes["affinity"] = dict.fromkeys(placed.affinity, "SLOW")
    if kind in ("copies", "beside"):
        copies: list[dict[str, Any]] = [{"device": device.name, "requests": 2} for device in placed.devices]
        if kind == "beside":
            third = {"name": "THIRD", "plugin": "CPU", "properties": F32}
            changes["devices"] = [*placed.model_dump()["devices"], third]
            copies = [{"affinity": placed.affinity, "requests": 2}, {"device": "THIRD", "requests": 1}]
        changes |= {"version": 3, "affinity": {}, "copies": copies}
    return Placement.model_validate({**placed.model_dump(), **changes})


def exported(placement: Placement, model: ov.Model, folder: Path) -> Path:
    export_placement(placement, "openvino", folder, ModelSource(model, tell=pytest.fail))
    return folder


def core_for(folder: Path) -> ov.Core:
    """As README.md of the folder says."""
    plugins = folder / "plugins.xml"
    core = ov.Core(plugins) if plugins.exists() else ov.Core()
    core.add_extension(folder / "libhsdag.so")
    return core


def outputs_of(model: ov.Model, inputs: Any) -> list[NDArray[Any]]:
    """What the CPU computes in f32."""
    return [np.array(array) for array in ov.Core().compile_model(model, "CPU", F32)(inputs).to_tuple()]


def compiled_in(folder: Path, placement: Placement) -> Any:
    names = [spec.openvino_name for spec in placement.devices if spec.name in placement.used_devices]
    is_op = any(folder.glob("parts-*"))
    target = "CPU" if is_op else names[0] if len(names) == 1 else "HETERO:" + ",".join(names)
    return core_for(folder).compile_model(folder / "model.xml", target)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_plain_openvino_computes_what_the_model_does(tmp_path: Path, alternating: Alternating, kind: str) -> None:
    """Of a model with names in quotes and brackets, an input that no op reads, and outputs that are one tensor."""
    model = awkward()
    placement = given_as(kind, alternating(model))
    compiled = compiled_in(exported(placement, model, tmp_path / "out"), placement)
    assert [port.get_names() for port in compiled.inputs] == [port.get_names() for port in model.inputs]
    assert compiled.output(3).get_names() == model.output(3).get_names()
    rng, request = np.random.default_rng(0), compiled.create_infer_request()
    for _ in range(20):  # what is read too early is another inference's
        inputs = [rng.standard_normal(port.get_shape()).astype(np.float32) for port in model.inputs]
        found = request.infer(inputs).to_tuple()
        for array, right in zip(found, outputs_of(model, inputs), strict=True):
            np.testing.assert_allclose(array, right, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("rows", [256, -1])
def test_a_part_reads_no_tensor_before_the_part_that_makes_it_has_ended(tmp_path: Path, rows: int) -> None:
    """A part on a third device reads what one device makes at once, and what the other one makes late."""
    x = op.parameter([rows, 256], np.float32, name="FAST")
    late, weight = x, op.constant(np.eye(256, dtype=np.float32), name="SLOW")
    for _ in range(8):
        late = op.tanh(op.matmul(late, weight, False, False, name="SLOW"), name="SLOW")
    ends = op.result(op.add(op.exp(x, name="FAST"), late, name="THIRD"), name="THIRD")
    model = ov.Model([ends], [x], "late")
    devices = [DeviceSpec(name, "CPU", F32) for name in ("FAST", "SLOW", "THIRD")]
    where = [node.get_friendly_name() for node in model.get_ordered_ops()]
    placement = by_hand(graph_of(model.clone()), devices, where, executor="work-conserving", data_shapes=())
    compiled = compiled_in(exported(placement, model, tmp_path / "out"), placement)
    rng = np.random.default_rng(0)
    for _ in range(20):
        array = rng.standard_normal((256, 256)).astype(np.float32)
        right = array
        for _ in range(8):
            right = np.tanh(right)
        np.testing.assert_allclose(compiled([array])[0], np.exp(array) + right, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_compiler
def test_every_op_has_the_affinity_that_the_applied_model_gives_it_and_hetero_makes_the_same_submodels(
    tmp_path: Path, core: ov.Core, model: ov.Model, alternating: Alternating
) -> None:
    for network in (model, awkward()):
        placement = alternating(network)
        folder = exported(placement, network, tmp_path / network.get_friendly_name().replace('"', ""))
        applied = {node.get_friendly_name(): affinity(node) for node in placement.apply(network.clone()).get_ops()}
        read = core_for(folder).read_model(folder / "model.xml")
        assert {node.get_friendly_name(): affinity(node) for node in read.get_ops()} == applied
        number = submodels(placement, graph_of(network.clone())).num_groups  # as predicted
        assert placement.compile(core, network).get_property("HETERO_NUMBER_OF_SUBMODELS") == number
        assert compiled_in(folder, placement).get_property("HETERO_NUMBER_OF_SUBMODELS") == number


def affinity(node: ov.Node) -> str:
    return str(node.get_rt_info()["affinity"].astype(str))


def with_bodies() -> ov.Model:
    """An If whose branch an input chooses, a Loop of three turns, and a TensorIterator over rows, in a chain."""
    x, chosen = op.parameter([4, 8], np.float32, name="x"), op.parameter([], np.float32, name="chosen")
    branch = op.if_op(op.greater(chosen, op.constant(np.float32(0))).output(0))
    then, other = (op.parameter([4, 8], np.float32) for _ in range(2))
    ends = op.result(op.tanh(then)), op.result(op.sin(other))
    branch.set_then_body(ov.Model([ends[0]], [then], "then"))
    branch.set_else_body(ov.Model([ends[1]], [other], "else"))
    branch.set_input(op.exp(x, name="before").output(0), then, other)
    taken = op.relu(branch.set_output(*ends), name="taken")
    turn = op.parameter([4, 8], np.float32)
    turned = op.cos(op.add(turn, turn))
    loop = op.loop(op.constant(np.int64(3)), op.constant(np.array(True)))
    loop.set_function(ov.Model([op.result(op.constant(np.array(True))), op.result(turned)], [turn], "turn"))
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(turn, taken.output(0), turned.output(0))
    looped = op.sigmoid(loop.get_iter_value(turned.output(0), -1), name="looped")
    row, before = (op.parameter([1, 8], np.float32) for _ in range(2))
    sums = op.add(row, before)
    rows = op.tensor_iterator()
    rows.set_body(ov.Model([op.result(sums)], [row, before], "row"))
    rows.set_sliced_input(row, looped.output(0), 0, 1, 1, -1, 0)
    rows.set_merged_input(before, op.constant(np.zeros((1, 8), np.float32)).output(0), sums.output(0))
    results = [op.result(op.tanh(rows.get_concatenated_slices(sums.output(0), 0, 1, 1, -1, 0), name="end"))]
    model = ov.Model(results, [x, chosen], "bodies")
    model.validate_nodes_and_infer_types()
    return model


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["hetero", "parts"])
def test_ops_with_bodies_compute_the_same_in_a_program_that_has_the_library_alone(
    tmp_path: Path, alternating: Alternating, kind: str
) -> None:
    model = with_bodies()
    placement = given_as(kind, alternating(model))
    assert len(placement.used_devices) == 2
    folder = exported(placement, model, tmp_path / "out")
    x = random_inputs(model)["x"]
    for chosen in (1, -1):
        np.savez(tmp_path / "in.npz", x=x, chosen=np.float32(chosen))
        ran(sys.executable, "-I", folder / "run.py", "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz")
        taken = np.maximum(np.tanh(np.exp(x)) if chosen > 0 else np.sin(np.exp(x)), 0)
        for _ in range(3):
            taken = np.cos(2 * taken)
        right = np.tanh(np.cumsum(1 / (1 + np.exp(-taken)), axis=0))
        (found,) = np.load(tmp_path / "out.npz").values()
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["tiny_stateful_llama_fp16", "tiny_stateful_llama_int4"])
def test_a_model_with_state_generates_the_same_under_hetero_and_is_refused_as_one_op(tmp_path: Path, name: str) -> None:
    model = build_model(name)
    halves = split_after(graph_of(model), "model.layers.1/output")
    placement = placement_of(model, halves).model_copy(update={"data_shapes": ()})
    folder = exported(placement, model, tmp_path / "out")
    assert generate(compiled_in(folder, placement).create_infer_request(), 16).tokens == unsplit(model, 16).tokens
    other = placement.model_copy(update={"executor": "work-conserving"})
    with pytest.raises(OptionError, match="keeps state between inferences, which a program could not reset"):
        export_placement(other, "openvino", tmp_path / "no", ModelSource(model))
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["hetero", "parts"])
def test_the_programs_of_the_folder_read_inputs_and_write_outputs(
    tmp_path: Path, model: ov.Model, alternating: Alternating, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(given_as(kind, alternating(model)), model, tmp_path / "out")
    (name, array), *_ = random_inputs(model).items()
    (right,) = outputs_of(model, [array])
    np.savez(tmp_path / "in.npz", **{name: array})  # type: ignore[arg-type]
    array.tofile(tmp_path / "in.bin")
    written = ["--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz"]
    assert re.match(
        r"latency_s: \d+\.\d+ \(median of 10 runs\)\n", ran(sys.executable, "-I", folder / "run.py", *written)
    )
    (found,) = np.load(tmp_path / "out.npz").values()
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    runtime = next((PACKAGE / "libs").glob("libopenvino.so.*"))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-isystem", PACKAGE / "include"]
    ran(COMPILER, *flags, folder / "main.cpp", runtime, f"-Wl,-rpath,{runtime.parent}", "-o", tmp_path / "main")
    monkeypatch.chdir(tmp_path)
    printed = ran(tmp_path / "main", folder, f"{name}={tmp_path / 'in.bin'}")
    output = np.fromfile(re.findall(r"^(.*): f32", printed, re.MULTILINE)[0] + ".bin", np.float32)
    np.testing.assert_allclose(output, right.ravel(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_compiler
def test_the_programs_time_the_sizes_that_the_model_was_placed_with(tmp_path: Path, alternating: Alternating) -> None:
    x = op.parameter([-1, 2], np.float32, name="x")
    model = ov.Model([op.result(op.relu(op.exp(x)), name="y")], [x], "open")
    placement = alternating(model).model_copy(update={"data_shapes": ("5,2", "9,2@3")})
    folder = exported(placement, model, tmp_path / "out")
    assert "float32 [5, 2]" in ran(sys.executable, "-I", folder / "run.py")
    assert "kSizes = {ov::Shape{5, 2}};" in (folder / "main.cpp").read_text()


def ran(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=300)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["f16", "f64", "i8", "i32", "i64", "u8", "u64", "boolean", "string"])
def test_one_op_has_inputs_and_outputs_of_every_type_and_of_open_sizes(
    tmp_path: Path, alternating: Alternating, name: str
) -> None:
    kind = getattr(ov.Type, name)
    x = op.parameter([-1, 2], kind, name="x")
    values: Any = op.concat([x, x], 0) if name in ("boolean", "string") else op.add(x, op.constant(3, kind))
    y = op.parameter([2], np.float32, name="y")
    results = [op.result(values, name="first"), op.result(x, name="same"), op.result(op.relu(op.exp(y, name="e")))]
    model = ov.Model(results, [y, x], "typed")
    placement = given_as("parts", alternating(model)).model_copy(update={"data_shapes": ()})
    compiled = compiled_in(exported(placement, model, tmp_path / "out"), placement)
    for rows in (1, 3):
        array: NDArray[Any] = np.asarray([["a", 'é"']] * rows)
        if name != "string":
            array = (np.arange(2 * rows).reshape(rows, 2) % 2).astype(kind.to_dtype())
        inputs = [np.ones(2, np.float32), array]
        for found, right in zip(compiled(inputs).to_tuple(), outputs_of(model, inputs), strict=True):
            assert found.dtype == right.dtype
            if right.dtype.kind == "f":
                np.testing.assert_allclose(found, right, rtol=1e-5)
            else:
                assert found.tolist() == right.tolist()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["parts", "beside"])
def test_inferences_of_four_threads_some_of_them_cancelled_are_right_and_leave_nothing_behind(
    tmp_path: Path, alternating: Alternating, kind: str
) -> None:
    model = awkward()
    placement = given_as(kind, alternating(model))
    folder = exported(placement, model, tmp_path / "out")
    compiled = core_for(folder).compile_model(folder / "model.xml", "CPU", {"NUM_STREAMS": 4})
    inputs = [[array * k for array in random_inputs(model).values()] for k in range(8)]
    right = [outputs_of(model, each) for each in inputs]

    def infer(seed: int) -> int:
        rng, request, num_ended = random.Random(seed), compiled.create_infer_request(), 0
        for _ in range(500):
            k = rng.randrange(8)
            request.start_async(inputs[k])
            if rng.random() < 0.1:
                request.cancel()
            try:
                request.wait()
            except RuntimeError:
                continue
            num_ended += 1
            for n, expected in enumerate(right[k]):
                np.testing.assert_allclose(request.get_output_tensor(n).data, expected, rtol=1e-5, atol=1e-6)
        return num_ended

    process = psutil.Process()
    with ThreadPoolExecutor(4) as threads:
        for _ in range(2):
            assert sum(threads.map(infer, range(4))) > 1500
        before, num_threads = process.memory_info().rss, process.num_threads()
        for _ in range(2):
            assert sum(threads.map(infer, range(4))) > 1500
    assert process.memory_info().rss - before < 20e6
    assert process.num_threads() <= num_threads


@pytest.mark.slow
@needs_compiler
def test_errors_are_one_exception_with_a_sentence(tmp_path: Path, alternating: Alternating, model: ov.Model) -> None:
    x = op.parameter([-1], np.float32, name="x")
    dynamic = ov.Model([op.exp(op.reshape(op.tanh(x), op.constant([2, 2]), special_zero=False))], [x], "dynamic")
    placement = given_as("parts", alternating(dynamic)).model_copy(update={"data_shapes": ()})
    compiled = compiled_in(exported(placement, dynamic, tmp_path / "dynamic"), placement)
    request = compiled.create_infer_request()
    (right,) = outputs_of(dynamic, [np.ones(4, np.float32)])
    assert request.infer([np.ones(4, np.float32)])[0].tolist() == right.tolist()
    for _ in range(3):  # the CPU plugin goes on to refuse what it has refused once, with a request of its own, too
        with pytest.raises(RuntimeError, match=r"hsdag: part_\d+\.xml failed on (FAST|SLOW): .*shape of input data"):
            request.infer([np.ones(5, np.float32)])
    given = given_as("parts", alternating(model))
    absent = [spec.__class__(spec.name, "NPU", {}) for spec in given.devices]
    folder = exported(given.model_copy(update={"devices": absent}), model, tmp_path / "absent")
    with pytest.raises(RuntimeError, match=r"hsdag: (FAST|SLOW) \(NPU\) does not compile .*part_000\.xml: \S"):
        compiled_in(folder, given)
    with pytest.raises(RuntimeError, match=r"hsdag: input 0 of the placed model is \[1,3,8,8\], not \[2,3,8,8\]"):
        core_for(folder).read_model(folder / "model.xml").reshape([2, 3, 8, 8])
    next(folder.glob("parts-*")).rename(folder / "elsewhere")
    with pytest.raises(RuntimeError, match=r"hsdag: there is no .*plan\.txt: keep the folder of the export together"):
        compiled_in(folder, given)


@pytest.mark.slow
@needs_compiler
def test_two_folders_that_were_moved_run_in_one_core(tmp_path: Path, alternating: Alternating, model: ov.Model) -> None:
    """The one without its library finds its parts where they were exported to."""
    moved = exported(given_as("parts", alternating(model)), model, tmp_path / "first").rename(tmp_path / "moved")
    other = exported(given_as("parts", alternating(awkward())), awkward(), tmp_path / "second")
    core = core_for(moved)
    for folder, network in ((moved, model), (other, awkward())):
        inputs = list(random_inputs(network).values())
        found = core.compile_model(folder / "model.xml", "CPU")(inputs).to_tuple()
        for array, right in zip(found, outputs_of(network, inputs), strict=True):
            np.testing.assert_allclose(array, right, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("order", ["core, model, compiled, request", "request, compiled, model, core", ""])
def test_all_can_be_let_go_of_in_any_order_or_at_the_end(
    tmp_path: Path, alternating: Alternating, model: ov.Model, order: str
) -> None:
    folder = exported(given_as("parts", alternating(model)), model, tmp_path / "out")
    code = f"""
import openvino as ov
core = ov.Core()
core.add_extension({str(folder / "libhsdag.so")!r})
model = core.read_model({str(folder / "model.xml")!r})
compiled = core.compile_model(model, "CPU")
request = compiled.create_infer_request()
request.infer()
request.start_async()
for name in {order.split(", ")}:
    globals().pop(name, None)
print("done")
"""
    assert ran(sys.executable, "-c", code) == "done\n"


@pytest.mark.slow
@needs_compiler
def test_another_openvino_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = PACKAGE / "include" / "openvino" / "core" / "version.hpp"
    older = tmp_path / "openvino" / "core"
    older.mkdir(parents=True)
    text = re.sub(r"(define OPENVINO_VERSION_MAJOR) \d+", r"\1 2019", header.read_text())
    (older / "version.hpp").write_text(text)
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, f"-I{tmp_path}"))
    library.compile_library(tmp_path)
    with pytest.raises(RuntimeError, match=r"was compiled for OpenVINO 2019\.\S+, and this is 20\d\d\.\S+: export"):
        ov.Core().add_extension(tmp_path / "libhsdag.so")


@pytest.mark.parametrize("compiler", [None, "false"])
def test_without_a_compiler_that_works_there_are_sources_and_the_command(
    tmp_path: Path, alternating: Alternating, model: ov.Model, monkeypatch: pytest.MonkeyPatch, compiler: str | None
) -> None:
    monkeypatch.setenv("HSDAG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "COMPILERS", (compiler,) if compiler else ("no-such-compiler",))
    told: list[str] = []
    export_placement(alternating(model), "openvino", tmp_path / "out", ModelSource(model, tell=told.append))
    reason = "there is no C[+][+] compiler" if compiler is None else r".*false fails \(it gives no reason\)"
    assert re.fullmatch(
        f"the extension library is not compiled, because {reason}: README.md has the command.*", told[0]
    )
    assert "cmake -S extension" in (tmp_path / "out" / "README.md").read_text()
    assert {path.name for path in (tmp_path / "out" / "extension").iterdir()} == set(library.FOR_CMAKE)
    assert not (tmp_path / "out" / library.LIBRARY).exists()


@pytest.mark.slow
@needs_compiler
def test_cmake_makes_the_library_of_the_sources(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no CMake")
    ran(cmake, "-S", library.SOURCES, "-B", tmp_path, f"-DOpenVINO_DIR={PACKAGE / 'cmake'}")
    ran(cmake, "--build", tmp_path)
    core = ov.Core()
    core.add_extension(tmp_path / library.LIBRARY)


@given(text=st.text(st.characters(codec="utf-8")))
def test_a_cpp_literal_holds_the_utf8_bytes(text: str) -> None:
    shown = literal(text)[1:-1]
    assert set(shown) <= {chr(c) for c in range(32, 127)} - {'"', "?"}
    found = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), shown)
    assert found.encode("latin-1") == text.encode()
    assert literal(" a~") == '" a~"'
