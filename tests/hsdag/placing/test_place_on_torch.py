"""The executor cuda in place and bench, on logical devices of the CPU: one search, its files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag.cli.app import run
from hsdag.ir.errors import PlacementError
from hsdag.ir.placement.placement import Placement
from hsdag.models.registry import workload_called

WORKLOAD = "chainmm[size=256;devices=2]"
DEVICES = "A=cpu[threads=1],B=cpu[threads=1]"
SEARCH = ["--executor", "cuda", "--devices", DEVICES, "--method", "critical-path", "--budget", "300s"]


@pytest.mark.slow
def test_a_search_on_torch_keeps_what_it_measured_and_its_answer_is_for_torch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSDAG_CACHE_DIR", str(tmp_path / "cache"))
    assert run(["place", WORKLOAD, "-o", str(tmp_path / "p.json"), *SEARCH, "--max-evaluations", "6"]) == 0
    placement = Placement.load(tmp_path / "p.json")
    assert (placement.executor, placement.model.name) == ("cuda", WORKLOAD)
    named = [(d.name, d.plugin, d.properties.get("threads")) for d in placement.devices]
    assert named[:2] == [("A", "cpu", "1"), ("B", "cpu", "1")]
    assert set(placement.baselines) >= {"A", "B"}
    assert set(placement.devices_of(workload_called(WORKLOAD, 2)[1].graph)) <= {"A", "B", "cpu"}
    with pytest.raises(PlacementError, match=r"for the CUDA engine .* whose devices OpenVINO does not have"):
        placement.check_openvino()
    record = json.loads((tmp_path / "p.run" / "run.json").read_text())
    events = (tmp_path / "p.run" / "events.jsonl").read_text().splitlines()
    assert (record["executor"], record["method"]) == ("cuda", "critical-path")
    assert {"0" * record["num_units"], "1" * record["num_units"]} <= {json.loads(line)["placement"] for line in events}
