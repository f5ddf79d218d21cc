"""The benchmark models against the HSDAG paper's Table 1 and the published parameter counts."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
import torch

from hsdag.models import MODELS

pytestmark = pytest.mark.slow

NAMES = ("resnet50", "inception_v3", "bert_base_uncased")


@pytest.fixture(scope="module")
def built() -> dict[str, ov.Model]:
    torch.set_num_threads(1)
    return {spec.name: spec.build(seed=0) for spec in MODELS if spec.name in NAMES}


@pytest.mark.parametrize(
    ("name", "counts", "off"),
    [("resnet50", (396, 411), 0.0), ("inception_v3", (728, 764), 0.0), ("bert_base_uncased", (1009, 1071), 0.02)],
)
def test_ops_and_edges_are_the_papers(
    built: dict[str, ov.Model], name: str, counts: tuple[int, int], off: float
) -> None:
    ops = built[name].get_ops()
    assert (len(ops), sum(len(op.inputs()) for op in ops)) == pytest.approx(counts, rel=off)


@pytest.mark.parametrize("name", NAMES)
def test_declared_parameters_all_lie_in_the_model(built: dict[str, ov.Model], name: str) -> None:
    sizes = [
        op.get_output_shape(0)
        for op in built[name].get_ops()
        if op.get_type_name() == "Constant" and op.get_element_type() == ov.Type.f16
    ]
    held = sum(int(np.prod(shape)) for shape in sizes)
    declared = next(spec.num_parameters for spec in MODELS if spec.name == name)
    # a batch norm's scale goes into the convolution before it; a few scalars come on top (input transform, sqrt)
    assert 0.99 * declared <= held <= declared + 14


@pytest.mark.parametrize("name", NAMES)
def test_every_float_weight_is_fp16_followed_by_a_convert(built: dict[str, ov.Model], name: str) -> None:
    for op in built[name].get_ops():
        if op.get_type_name() == "Constant" and op.get_element_type().is_real() and op.data.size > 1:
            consumers = [target.get_node().get_type_name() for target in op.output(0).get_target_inputs()]
            assert (op.get_element_type(), consumers) == (ov.Type.f16, ["Convert"])
