"""The executor cuda in place and bench, on logical devices of the CPU: one search, its files, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hsdag.cli.app import run
from hsdag.ir.errors import PlacementError
from hsdag.ir.placement.placement import Placement
from hsdag.models.registry import workload_called

WORKLOAD = "chainmm[size=256;devices=2]"
DEVICES = "A=cpu[threads=1],B=cpu[threads=1]"
SEARCH = ["--executor", "cuda", "--devices", DEVICES, "--method", "critical-path", "--budget", "300s"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the search below wrote its placement."""
    found = tmp_path_factory.mktemp("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HSDAG_CACHE_DIR", str(found / "cache"))
        assert run(["place", WORKLOAD, "-o", str(found / "p.json"), *SEARCH, "--max-evaluations", "6"]) == 0
    return found


@pytest.mark.slow
def test_a_search_on_torch_keeps_what_it_measured_and_its_answer_is_for_torch_alone(
    folder: Path,
) -> None:
    placement = Placement.load(folder / "p.json")
    assert (placement.executor, placement.model.name) == ("cuda", WORKLOAD)
    named = [(d.name, d.plugin, d.properties.get("threads")) for d in placement.devices]
    assert named[:2] == [("A", "cpu", "1"), ("B", "cpu", "1")]
    assert set(placement.baselines) >= {"A", "B"}
    assert set(placement.devices_of(workload_called(WORKLOAD, 2)[1].graph)) <= {"A", "B", "cpu"}
    with pytest.raises(PlacementError, match=r"for the CUDA engine .* whose devices OpenVINO does not have"):
        placement.check_openvino()
    record = json.loads((folder / "p.run" / "run.json").read_text())
    events = (folder / "p.run" / "events.jsonl").read_text().splitlines()
    assert (record["executor"], record["method"]) == ("cuda", "critical-path")
    assert {"0" * record["num_units"], "1" * record["num_units"]} <= {json.loads(line)["placement"] for line in events}
    assert (folder / "cache" / "profiles").is_dir()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_cuda_and_without_devices_the_error_says_what_to_name(
    tiny_resnet: Path, complains: Callable[..., str]
) -> None:
    line = complains("place", tiny_resnet, "--executor", "cuda")
    assert "torch finds no CUDA device here; name logical devices" in line
