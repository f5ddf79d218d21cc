"""``hsdag profile`` and the reports made of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from hsdag.cli.app import run
from hsdag.commands.profile import heaviest_ops
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.placement.homes import op_devices
from hsdag.ir.placement.placement import Placement
from hsdag.models import build_model
from hsdag.runtime.measuring.profile import DeviceProfile, LinkProfile, ModelProfile
from hsdag.runtime.problem.problem_file import read_problem
from hsdag.runtime.problem.schedule_problem import CostSource
from hsdag.runtime.problem.units import problem_of
from tests.hsdag.answers import answer
from tests.placements import halves


@pytest.mark.slow
def test_the_costs_are_a_problem_file_of_the_models_own_ops_that_says_how_much_devices_slow_each_other_down(
    tiny_resnet: Path, tmp_path: Path
) -> None:
    assert run(["profile", str(tiny_resnet), "--partition-cpu", "2", "-o", str(tmp_path / "costs.json")]) == 0
    problem = read_problem(tmp_path / "costs.json")
    assert problem.device_names == ("CPU_0", "CPU_1")
    assert problem.source is CostSource.MEASURED
    assert set(problem.op_names) == set(read_graph(tiny_resnet).op_names)
    assert problem_of(problem).num_units < problem.num_ops
    assert problem.slowdown is not None
    assert problem.slowdown.shape == (2, 2)
    assert problem.slowdown.min() >= 1.0


@pytest.mark.slow
def test_a_language_model_in_half_precision_is_profiled_in_one_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ov.save_model(build_model("tiny_stateful_llama_fp16"), tmp_path / "llama.xml")
    given = ("--devices", "ONE=CPU[INFERENCE_NUM_THREADS=1]", "--tokens", "8", "-o", tmp_path / "costs.json")
    answer(capsys, "profile", tmp_path / "llama.xml", *given)
    assert read_problem(tmp_path / "costs.json").device_names == ("ONE",)


def test_a_platform_that_is_not_here_gives_costs_that_say_they_are_not_measured(
    tiny_resnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = answer(capsys, "profile", tiny_resnet, "--platform", "t4-a100", "-o", tmp_path / "c.json")
    assert document["source"] == "analytic"
    problem = read_problem(tmp_path / "c.json")
    assert list(problem.device_names) == document["devices"]
    assert len(set(problem.labels.colocate)) == placement_units(read_graph(tiny_resnet)).graph.num_ops
    assert run(["profile", str(tiny_resnet), "--platform", "t4-a100", "--partition-cpu", "2"]) == 2
    assert "--platform brings its own devices" in capsys.readouterr().err


A, B = DeviceSpec(name="A", plugin="A"), DeviceSpec(name="B", plugin="B")


def two_devices() -> ModelProfile:
    """Ops 1 and 2 are one primitive on the first device; op 3 runs on the second alone."""
    links = LinkProfile(np.zeros(2), np.zeros((2, 2)), np.ones((2, 2)))
    first = DeviceProfile(np.array([1.0, 4.0, 0.0, np.nan]), ((1, 2),), None, 0.0, 1, 0, None, device=A)
    second = DeviceProfile(np.array([3.0, 1.0, 2.0, 5.0]), (), 11.0, 0.0, 1, 0, None, device=B)
    return ModelProfile(devices=(first, second), links=links)


def test_devices_are_compared_over_ops_that_one_of_them_computes_as_one_and_a_tie_is_won_by_neither() -> None:
    graph = graph_from_edges(["Relu", "Convolution", "Add", "Sin"], [(0, 1), (1, 2), (2, 3)], flops=[1, 9, 1, 1])
    rows, wins, saved_s = heaviest_ops(graph, two_devices())
    assert [(row.type, row.fused_ops, row.time_s, row.best) for row in rows] == [
        ("Sin", 1, {"B": 5.0}, "B"),
        ("Convolution", 2, {"A": 4.0, "B": 3.0}, "B"),
        ("Relu", 1, {"A": 1.0, "B": 3.0}, "A"),
    ]
    assert (wins.tolist(), saved_s.tolist()) == ([1, 2], [2.0, 1.0])
    graph = graph_from_edges(["Relu"], [])
    same = tuple(DeviceProfile(np.array([2.0]), (), 2.0, 0.0, 1, 0, None, device=device) for device in (A, B))
    links = LinkProfile(np.zeros(2), np.zeros((2, 2)), np.ones((2, 2)))
    rows, wins, _ = heaviest_ops(graph, ModelProfile(devices=same, links=links))
    assert rows[0].best is None
    assert wins.tolist() == [0, 0]


def test_a_measured_trace_holds_the_ops_of_every_device_and_the_placement_is_loaded_once(
    tiny_resnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = read_graph(tiny_resnet)
    placement = halves(graph, parse_devices("A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]"))
    placement.save(tmp_path / "p.json")
    load, loaded = Placement.load, list[object]()
    monkeypatch.setattr(Placement, "load", lambda path: loaded.append(path) or load(path))  # type: ignore[func-returns-value]
    answer(capsys, "bench", tiny_resnet, "-p", tmp_path / "p.json", "--time", "0.3s", "--trace", tmp_path / "t.json")
    assert len(loaded) == 1
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["otherData"]["times"] == "measured"
    threads = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    ran = {event["name"]: event for event in document["traceEvents"] if event["ph"] == "X"}
    convolutions = {name for name, t in zip(graph.op_names, graph.op_types, strict=True) if t == "Convolution"}
    shown = {name: threads[ran[name]["tid"]] for name in convolutions & set(ran)}
    assert len(shown) >= len(convolutions) // 2
    placed = dict(zip(graph.op_names, op_devices(placement, graph), strict=True))
    assert shown == {name: placed[name] for name in shown}
