"""What inspect says of shards: regions, what they could gain at most, and why the rest cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from hsdag.cli.inspect import _print_shards
from hsdag.diagnosis.inspect import inspect

DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "AB")


def test_devices_that_are_named_are_asked_what_they_could_gain_together(
    tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspect(tiny_bert, devices=DEVICES).shards
    assert found is not None
    assert 0 < found.bound_s <= found.whole_s
    assert found.regions
    for region in found.regions:
        assert 0 < region.bound_s < region.whole_s
        assert region.sync_s > 0
    assert sum(found.left.values()) <= 1.0
    _print_shards(found)
    told = capsys.readouterr().out
    assert "what devices could compute together" in told
    assert "could be reached if syncs took nothing" in told


def test_one_device_is_not_asked(tiny_bert: Path) -> None:
    assert inspect(tiny_bert, devices="CPU").shards is None
