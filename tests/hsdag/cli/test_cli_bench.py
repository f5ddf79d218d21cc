"""``hsdag bench`` with the options of benchmark_app."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag.cli.app import run
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import read_graph
from hsdag.ir.placement.placement import Placement
from tests.placements import by_hand


def test_inferences_are_counted_as_benchmark_app_does(capsys: pytest.CaptureFixture[str], tiny_resnet: Path) -> None:
    given = ["-d", "CPU[NUM_STREAMS=1]", "-hint", "latency", "-niter", "20", "-nireq", "2"]
    assert run(["bench", "-m", str(tiny_resnet), *given, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["runs"] == 20
    assert row["min_s"] <= row["median_s"] <= row["max_s"]


def test_a_placement_is_loaded_once(
    tiny_resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    graph = read_graph(tiny_resnet)
    by_hand(graph, [DeviceSpec("CPU", "CPU")], ["CPU"] * graph.num_ops).save(path)
    load, loaded = Placement.load, list[object]()

    def counted(given: Path) -> Placement:
        loaded.append(given)
        return load(given)

    monkeypatch.setattr(Placement, "load", counted)
    assert run(["bench", str(tiny_resnet), "-p", str(path), "--time", "0.2s", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == [str(path)]
    assert len(loaded) == 1
