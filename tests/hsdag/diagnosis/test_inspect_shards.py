"""What inspect says of shards: regions, what they could gain at most, and why the rest cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hsdag.cli.app import run
from hsdag.diagnosis.inspect import ShardBound

DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "AB")


def test_devices_that_are_named_are_asked_what_they_could_gain_together(
    tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(tiny_bert), "--devices", DEVICES, "--json"]) == 0
    found = ShardBound.model_validate(json.loads(capsys.readouterr().out)["shards"])
    assert 0 < found.bound_s <= found.whole_s
    assert found.regions
    for region in found.regions:
        assert 0 < region.bound_s < region.whole_s
        assert region.sync_s > 0
    assert sum(found.left.values()) <= 1.0
    assert run(["inspect", str(tiny_bert), "--devices", DEVICES]) == 0
    told = capsys.readouterr().out
    assert "what devices could compute together" in told
    assert "could be reached if syncs took nothing" in told


def test_one_device_is_not_asked(tiny_bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(tiny_bert), "--devices", "CPU", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shards"] is None
