"""Placing through the Python API: what the answer guarantees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hsdag
from hsdag.ir.device import parse_devices
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import placement_units
from hsdag.placing import place
from hsdag.placing.final import final_comparison
from hsdag.placing.place import run_place
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.search.options import PlaceOptions
from tests.placements import by_hand


def test_searches_and_profiles_know_a_model_without_names_again(onnx_file: Path) -> None:
    devices, shapes = resolve_devices("CPU", None), {"x": (2, 3, 8, 8)}
    with Session(onnx_file, devices, shapes=shapes) as first, Session(onnx_file, devices, shapes=shapes) as second:
        assert first.graph.op_names != second.graph.op_names
        assert first.model_record == second.model_record
        assert first._digest == second._digest


def test_a_start_on_a_device_that_is_not_searched_over_is_refused(tiny_resnet: Path, tmp_path: Path) -> None:
    graph = read_graph(tiny_resnet)
    devices = parse_devices("A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]")
    by_hand(graph, devices, ["A"] + ["B"] * (graph.num_ops - 1)).save(tmp_path / "start.json")
    with pytest.raises(OptionError, match="uses device 'B' as its file describes it, which is not searched"):
        hsdag.place(tiny_resnet, "A=CPU[INFERENCE_NUM_THREADS=1],C=CPU", start=tmp_path / "start.json")


def test_a_start_that_is_the_answer_is_written_as_its_file_says(
    tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs, graph = "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]", read_graph(tiny_resnet)
    units = placement_units(graph).partition.labels
    device = np.where(units < units.max() // 2, "A", "B").tolist()
    start = by_hand(graph, parse_devices(specs), device, seed=7)
    monkeypatch.setattr(place, "final_comparison", lambda *a, **b: replace(final_comparison(*a, **b), answer="start"))
    options = PlaceOptions(devices=specs, method="best-device", reward="measured", start=start)
    found = run_place(tiny_resnet, options)
    assert found.answer.ops == {"A": device.count("A"), "B": device.count("B")}
    assert "it is the one to start with" in found.sentence
    assert (found.placement.affinity, found.placement.method, found.placement.seed) == (start.affinity, "by hand", 7)
