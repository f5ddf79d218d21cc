"""Fixtures of tests of the tool: a search as it lies on disk, and how a user's mistake is answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest

from hsdag.cli.app import run
from hsdag.commands.place.place import run_place
from hsdag.commands.place.result import PlaceResult
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.models import build_model
from hsdag.runtime.measuring.latency import Protocol
from hsdag.search.options import PlaceOptions
from tests.conftest import made_once


@pytest.fixture(scope="module", autouse=True)
def comparisons_are_short(short_comparisons: None) -> None:
    """Unless a test says how long they are."""


@pytest.fixture(scope="session")
def core() -> ov.Core:
    """One OpenVINO for all tests; full precision, so that devices and plain CPU compute the same."""
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return core


@pytest.fixture(scope="session")
def kept_search(tiny_resnet: Path, tmp_path_factory: pytest.TempPathFactory) -> PlaceResult:
    """A search over two halves of the CPU, its run folder beside the placement file; nobody may change them."""
    options = PlaceOptions(partition_cpu=2, budget_s=30.0, max_evaluations=6, protocol=Protocol(4, 6, 0.02, 4.0))

    def search(folder: Path) -> None:
        result = run_place(tiny_resnet, options, run_folder=folder / "tiny.placement.run")
        result.save(folder / "tiny.placement.json")
        (folder / "returned.json").write_text(result.model_dump_json())

    folder = made_once(tmp_path_factory, "kept", search)
    return PlaceResult.model_validate_json((folder / "returned.json").read_text())


@pytest.fixture(scope="module")
def llama() -> ov.Model:
    return build_model("tiny_stateful_llama_int4")


@pytest.fixture(scope="module")
def llama_graph(llama: ov.Model) -> ComputationGraph:
    return graph_of(llama)


@pytest.fixture
def complains(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command line, checks the manner of the complaint, and gives its text."""

    def check(*arguments: object) -> str:
        code = run([str(a) for a in arguments])
        captured = capsys.readouterr()
        assert code == 2, captured
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert [line.startswith("hsdag: ") for line in lines] == [False] * (len(lines) - 1) + [True], captured.err
        assert "defect" not in captured.err
        assert "Traceback" not in captured.err
        return lines[-1]

    return check


@pytest.fixture
def weights_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of small ops take their part of the whole."""
    monkeypatch.setattr("hsdag.ir.shards.regions.FLOPS_PER_BYTE", 0.0)
