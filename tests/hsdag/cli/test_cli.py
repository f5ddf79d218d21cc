"""The command line on real devices: what each command prints and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hsdag.cli.app import run
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.reader import load_model
from hsdag.ir.placement.placement import Placement
from hsdag.placing.result import PlaceResult
from tests.hsdag.commands import answer

Json = dict[str, Any]


def test_inspect_counts_what_the_model_holds(capsys: pytest.CaptureFixture[str], tiny_resnet: Path) -> None:
    document = answer(capsys, "inspect", tiny_resnet)
    model = load_model(tiny_resnet)
    assert document["nodes"] == len(model.get_ops())
    assert document["edges"] == sum(op.get_input_size() for op in model.get_ops())
    assert document["mean_degree"] == pytest.approx(document["edges"] / document["nodes"])
    assert sum(document["op_histogram"].values()) == document["nodes"]
    assert document["unsupported"] == {"CPU": []}


def test_place_writes_a_complete_placement_that_is_never_slower(
    capsys: pytest.CaptureFixture[str], tiny_resnet: Path, tmp_path: Path, fast_slow: str
) -> None:
    out = tmp_path / "out.json"
    document = answer(
        capsys, "place", tiny_resnet, "--devices", fast_slow, "--reward", "measured", "--max-evaluations", 6, "-o", out
    )
    placement = Placement.load(out)
    assert set(placement.affinity) == set(read_graph(tiny_resnet).canonical_names)
    assert document["tally"]["tried"] == 6
    verdict = document["verdict"]
    assert verdict["difference"]["max_relative"] <= verdict["tolerance"]  # the CPU may compute in half precision
    assert placement.speedup is not None
    assert placement.speedup.ci95[0] >= 1.0
    assert {"FAST", "SLOW", "CPU"} == set(placement.baselines)  # HETERO and AUTO would take one device
    assert [row["is_answer"] for row in document["rows"]].count(True) == 1


def test_export_writes_what_a_placement_holds(
    capsys: pytest.CaptureFixture[str], tiny_resnet: Path, tmp_path: Path, kept_search: PlaceResult
) -> None:
    out = tmp_path / "out.json"
    kept_search.save(out)
    document = answer(capsys, "export", out, "--format", "json", "-o", tmp_path / "copy.json")
    assert document["files"] == [str(tmp_path / "copy.json")]
    assert Placement.load(tmp_path / "copy.json") == kept_search.placement
    table = tiny_resnet.with_suffix(".csv")  # beside the model, which a table does not touch
    assert answer(capsys, "export", out, "--format", "csv", "-m", tiny_resnet, "-o", table)["files"] == [str(table)]
    table.unlink()
    assert run(["export", str(out), "--format", "parts", "-m", str(tiny_resnet), "-o", str(tmp_path / "parts")]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {tmp_path / 'parts'}, ")  # not the names of all files


def test_inferences_are_counted_as_benchmark_app_does(capsys: pytest.CaptureFixture[str], tiny_resnet: Path) -> None:
    given = ["-d", "CPU[NUM_STREAMS=1]", "-hint", "latency", "-niter", "20", "-nireq", "2"]
    (row,) = answer(capsys, "bench", "-m", tiny_resnet, *given)["rows"]
    assert row["runs"] == 20
    assert row["min_s"] <= row["median_s"] <= row["max_s"]
