"""The Python API: every function returns a result object, and its options reach the search."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as op

import hsdag
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.copies import CopiedModel
from hsdag.ir.placement.placement import CopyRecord, ModelRecord
from hsdag.runtime.executor.requests import WorkConservingModel
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

FORK = ScheduleProblem.from_arrays([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], [(0, 1), (0, 2)], output_bytes=1.0)


@pytest.fixture
def model() -> ov.Model:
    x = op.parameter([4, 8], np.float32, name="x")
    return ov.Model([op.relu(op.matmul(x, np.eye(8, dtype=np.float32), False, False))], [x], "small")


def test_simulate_takes_a_file_or_a_problem_and_a_map_or_a_file(tmp_path: Path) -> None:
    write_problem(FORK, tmp_path / "fork.json")
    answer = hsdag.solve(tmp_path / "fork.json", "heft", budget=1)
    answer.placement.save(tmp_path / "p.json")
    values = [
        hsdag.simulate(problem, placement).value
        for problem in (FORK, tmp_path / "fork.json")
        for placement in (answer.affinity, answer.placement, tmp_path / "p.json")
        if placement is not None
    ]
    assert values == [answer.value] * 6


@pytest.mark.parametrize(
    ("call", "given", "kind"),
    [
        (hsdag.place, {"model": "m", "memory": [1]}, "memory must be str | Mapping[str, str | float] | None, not [1]"),
        (hsdag.place, {"model": "m", "shape": {"x": ["a"]}}, "Mapping[str, Sequence[int]] | None, not {'x': ['a']}"),
        (hsdag.place, {"model": "m", "shape": {1: [2]}}, "shape must be str | Mapping"),
        (hsdag.place, {"model": "m", "progress": 1}, "progress must be Callable"),
        (hsdag.solve, {"problem": FORK, "seed": 1.5}, "seed must be int, not 1.5"),
        (hsdag.explain, {"placement": FORK}, "placement must be str | Path | Placement | PlaceResult, not Schedule"),
    ],
)
def test_an_argument_of_another_type_is_refused_in_one_line(
    call: Callable[..., object], given: dict[str, object], kind: str
) -> None:
    with pytest.raises(hsdag.HsdagError, match=re.escape(kind)):
        call(**given)


def test_sizes_and_seeds_may_be_of_any_kind_of_mapping_and_integer() -> None:
    given: dict[str, Any] = {"seed": np.int64(1), "budget": np.float32(1.0), "memory": {"d0": 4, "d1": "8B"}}
    found = hsdag.solve(FORK, "heft", **given)
    assert found.problem.memory_bytes.tolist() == [4.0, 8.0]


def test_progress_is_told_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.search.driver.TELL_EVERY_S", 0.0)
    lines: list[str] = []
    assert len(hsdag.compare(FORK, ["heft", "ea"], seeds=2, max_evaluations=20, progress=lines.append).runs) == 4
    assert any(line.startswith("heft, seed 0") for line in lines)
    lines.clear()
    assert hsdag.solve(FORK, "heft", budget=1, progress=lines.append).value == pytest.approx(3.0)
    assert any("placements, best 3000 ms" in line for line in lines)


def test_a_placement_is_compiled_for_what_its_file_names(model: ov.Model, tmp_path: Path) -> None:
    graph = graph_of(model)
    devices = [DeviceSpec.parse(f"API_{name}=CPU[INFERENCE_NUM_THREADS=1]") for name in "ABC"]
    alone = dict.fromkeys(graph.canonical_names, "API_A")
    relu, result = (graph.canonical_names[graph.op_types.index(kind)] for kind in ("Relu", "Result"))
    split = {**alone, relu: "API_B", result: "API_B"}
    copies = CopyRecord(device="API_C", requests=1), CopyRecord(affinity=split, requests=1)
    given: dict[str, Any] = {"model": ModelRecord.of(graph), "devices": devices, "method": "m", "seed": 0}
    given["objective"] = "throughput"
    x = np.ones((4, 8), np.float32)
    for fields, kind in (
        ({"executor": "hetero", "affinity": alone}, ov.CompiledModel),
        ({"executor": "work-conserving", "affinity": split}, WorkConservingModel),
        ({"executor": "work-conserving", "affinity": {}, "copies": copies, "version": 3}, CopiedModel),
    ):
        hsdag.Placement(**given, **fields).save(tmp_path / "p.json")
        compiled = hsdag.compile_model(model, tmp_path / "p.json")
        assert isinstance(compiled, kind)
        assert np.allclose(compiled(x)[0], x)
    pipeline = compiled.copies[1]
    assert isinstance(pipeline.compiled, WorkConservingModel)
    outputs = [compiled.start_async(x * k) for k in range(20)]
    assert all(np.allclose(found.result()[0], x * k) for k, found in enumerate(outputs))
    assert pipeline.period_s > 0
    compiled.close()
    with pytest.raises(hsdag.HsdagError, match="is closed"):
        pipeline.compiled(x)


def test_results_are_taken_where_files_are(model: ov.Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((4, 8), dtype=np.float32))
    found = hsdag.place(
        model, partition_cpu=2, method="best-device", budget=8, max_evaluations=2, inputs=tmp_path / "x.npz",
        run_folder=tmp_path / "run",
    )  # fmt: skip
    assert {row.name for row in found.rows} >= {"CPU", "CPU_0", "CPU_1"}
    assert (str(found)[:20], len(repr(found)) < 400, found.model_path) == ("Run the whole model ", True, None)
    assert f"The search is in {tmp_path / 'run'}." in found.lines
    assert "--budget 8" in (tmp_path / "run" / "options").read_text()
    assert hsdag.explain(found).model == "small"
    for source in (found, tmp_path / "run"):
        (written,) = hsdag.export(source, "json", tmp_path / "again.json").files
        assert hsdag.Placement.load(written) == found.placement
    (tmp_path / "run" / "result.json").rename(tmp_path / "result.json")
    with pytest.raises(hsdag.HsdagError, match="has not ended: finish it with resume"):
        hsdag.export(tmp_path / "run", "json", tmp_path / "again.json")
    (tmp_path / "result.json").rename(tmp_path / "run" / "result.json")
    assert hsdag.report(found, tmp_path / "page.html").files == (tmp_path / "page.html",)
    assert [row.name for row in hsdag.bench(model, found, time="0.1s").rows] == ["placement 1"]
    rows = hsdag.bench(model, [found, tmp_path / "again.json"], ["CPU"], time="0.3s").rows
    assert {row.name for row in rows} == {"placement 1", str(tmp_path / "again.json"), "CPU"}
    assert all(sorted(each, key=lambda row: -row.ratio) == list(each) for each in (found.rows, rows))
    placed = model.clone()
    found.placement.apply(placed)
    assert {"CPU" in node.get_rt_info()["affinity"].astype(str) for node in placed.get_ops()} == {True}
    with pytest.raises(hsdag.HsdagError, match=r"^partition_cpu 4096"):
        hsdag.place(model, partition_cpu=4096)
    with pytest.raises(hsdag.HsdagError, match="kept in no folder: place with run_folder"):
        hsdag.report(found.model_copy(update={"run_folder": None}))


def test_a_module_with_an_example_is_placed_with_the_sizes_of_the_example() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    found = hsdag.place(module, "CPU", example_input=torch.ones(3, 8), method="best-device")
    assert list(found.placement.model.input_shapes.values()) == [(3, 8)]


def test_a_model_is_inspected_with_its_inputs_and_outputs(model: ov.Model, tmp_path: Path) -> None:
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    found = hsdag.inspect(tmp_path / "m.xml")
    assert [(each.name, each.type, each.shape) for each in found.inputs] == [("x", "f32", "[4,8]")]
    assert [(each.type, each.shape) for each in found.outputs] == [("f32", "[4,8]")]


def test_a_profile_is_measured_of_named_devices(model: ov.Model, tmp_path: Path) -> None:
    ov.save_model(model, tmp_path / "m.xml")
    assert [each.name for each in hsdag.profile(tmp_path / "m.xml", "CPU").devices] == ["CPU"]
    assert "CPU" in [each.name for each in hsdag.devices().openvino]


def test_errors_name_parameters_and_quote_what_was_given() -> None:
    with pytest.raises(hsdag.HsdagError, match=r"^memory '--pin=1XB': '--pin=1XB' is not of the form DEVICE=SIZE"):
        hsdag.solve(FORK, memory="--pin=1XB")
    with pytest.raises(hsdag.HsdagError, match=r"^pins '--memory' is not of the form REGEX=DEVICE"):
        hsdag.solve(FORK, pins=["--memory"])
