"""What inspect says of shards: regions, what they could gain at most, and why the rest cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.base.errors import OptionError
from hsdag.commands.inspect import inspect

DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]" for name in "AB")


@pytest.mark.slow
def test_devices_that_are_named_are_asked_what_they_could_gain_together(tiny_bert: Path) -> None:
    found = inspect(tiny_bert, devices=DEVICES).shards
    assert found is not None
    assert 0 < found.bound_s <= found.whole_s
    assert found.regions
    assert all(0 < each.bound_s < each.whole_s and each.sync_s > 0 for each in found.regions)
    assert sum(found.left.values()) <= 1.0


def test_devices_are_asked_where_sizes_are_known_and_one_alone_not_what_it_could_share(tmp_path: Path) -> None:
    x = opset13.parameter([-1, 8], np.float32, name="x")
    path = tmp_path / "open.xml"
    ov.save_model(ov.Model([opset13.result(opset13.relu(x))], [x], "open"), path)
    found = inspect(path)
    assert (found.dynamic_inputs, found.unsupported) == (("x",), None)
    assert inspect(path, data_shape=["x[4,8]"]).unsupported == {"CPU": []}
    named = inspect(path, shape="x[4,8]", devices="CPU")
    assert (named.dynamic_inputs, named.unsupported, named.shards) == ((), {"CPU": []}, None)
    with pytest.raises(OptionError, match="of known sizes"):
        inspect(path, devices="CPU")
