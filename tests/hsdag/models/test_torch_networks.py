"""The zoo's torch networks against torch's own layers and answers, and the large ones against the HSDAG paper."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
import torch
from torch import nn

from hsdag.models import MODELS, build_model
from hsdag.models.sizes import BertSizes
from hsdag.models.torch_networks import (
    BERT_EPS,
    BertLayer,
    Bottleneck,
    random_network,
    transform_input,
)
from tests.hsdag.ir.shards.random_shards import inputs_of, outputs_of

SPECS = {spec.name: spec for spec in MODELS}
TINY = [name for name in SPECS if name.startswith("tiny")]
NETWORKS = {name: spec.network for name, spec in SPECS.items() if name in TINY and callable(spec.network)}
NUM_WEIGHTS = {
    "resnet50": 25_557_032,
    "inception_v3": 23_834_568,
    "bert_base_uncased": 109_482_240,
    "tiny_resnet": 3_922,
    "tiny_inception": 39_296,
    "tiny_bert": 21_984,
}
"""Trainable weights of each network, those of the large ones as published."""
SIZES = BertSizes(layers=1, hidden=24, heads=3, intermediate=40, vocabulary=10, positions=8)


@pytest.fixture(scope="module")
def built() -> dict[str, ov.Model]:
    return {name: build_model(name) for name in TINY}


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def test_bert_layer_is_torchs_transformer_encoder_layer() -> None:
    layer = random_network(lambda: BertLayer(SIZES), 0)
    theirs = nn.TransformerEncoderLayer(24, 3, 40, 0.0, "gelu", BERT_EPS, batch_first=True).eval()
    parts = (layer.attention.query, layer.attention.key, layer.attention.value)
    theirs.self_attn.in_proj_weight = nn.Parameter(torch.cat([part.weight for part in parts]))
    theirs.self_attn.in_proj_bias = nn.Parameter(torch.cat([part.bias for part in parts]))
    theirs.self_attn.out_proj.load_state_dict(layer.attention.output.state_dict())
    theirs.linear1, theirs.linear2 = layer.intermediate, layer.output
    theirs.norm1, theirs.norm2 = layer.attention_norm, layer.output_norm
    x = drawn(2, 5, 24)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, torch.zeros(1, 1, 1, 5)), theirs(x))


def test_input_transform_goes_from_imagenets_scale_to_minus_one_to_one() -> None:
    pixels = drawn(1, 3, 4, 5)
    means, deviations = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = (pixels - means[:, None, None]) / deviations[:, None, None]
    torch.testing.assert_close(transform_input(images), (pixels - 0.5) / 0.5, atol=1e-3, rtol=0)


def test_block_without_branch_passes_its_input_on() -> None:
    block = random_network(lambda: Bottleneck(16, 4, 1), 0)
    with torch.no_grad():
        for tensor in block.branch[-1].parameters():
            tensor.zero_()
        torch.testing.assert_close(block(drawn(1, 16, 6, 6)), drawn(1, 16, 6, 6))


def test_no_shift_is_near_zero() -> None:
    norm = random_network(lambda: nn.BatchNorm2d(1000), 0)
    assert norm.running_mean is not None
    for shift in (norm.bias.detach(), norm.running_mean):
        assert 0.02 <= float(shift.abs().min()) <= float(shift.abs().max()) <= 0.1 + 1e-6
        assert float(shift.min()) < 0 < float(shift.max())


@pytest.mark.parametrize(
    ("make", "variance"),
    [(lambda: nn.Conv2d(32, 512, 3, groups=4, bias=False), 2 / 72), (lambda: nn.Linear(128, 512), 1 / 128)],
    ids=["convolution", "linear"],
)
def test_weights_have_the_variance_that_their_inputs_ask_for(make: Callable[[], nn.Conv2d], variance: float) -> None:
    assert float(random_network(make, 0).weight.detach().var()) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("name", TINY)
def test_a_model_has_the_declared_ends_and_weights_and_outputs_of_sane_scale_that_depend_on_the_input(
    built: dict[str, ov.Model], name: str
) -> None:
    spec, model = SPECS[name], built[name]
    assert model.get_friendly_name() == name
    assert [(p.get_any_name(), tuple(p.shape)) for p in model.inputs] == [(x.name, x.shape) for x in spec.inputs]
    assert tuple(port.get_any_name() for port in model.outputs) == spec.outputs
    if name in NETWORKS:
        assert sum(p.numel() for p in NETWORKS[name](0).parameters()) == NUM_WEIGHTS[name]
    given = (inputs_of(model, np.random.default_rng(seed)) for seed in (0, 1))
    for a, b in zip(*(outputs_of(model, inputs) for inputs in given), strict=True):
        assert np.isfinite(a).all()
        assert 0.05 < a.std() < 10
        assert np.abs(a - b).max() > 0.01 * a.std()


def test_hidden_token_changes_nothing_for_the_others(built: dict[str, ov.Model]) -> None:
    ids, mask, types = np.arange(8)[None], np.ones((1, 8), np.int64), np.zeros((1, 8), np.int64)
    mask[0, 5], other_ids = 0, ids.copy()
    other_ids[0, 5] = 77
    a, b = (outputs_of(built["tiny_bert"], [each, mask, types])[0] for each in (ids, other_ids))
    np.testing.assert_allclose(a[0, mask[0] == 1], b[0, mask[0] == 1], atol=1e-6)
    assert np.abs(a[0, 5] - b[0, 5]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counts", "off"),
    [("resnet50", (396, 411), 0.0), ("inception_v3", (728, 764), 0.0), ("bert_base_uncased", (1009, 1071), 0.02)],
)
def test_ops_and_edges_are_those_of_table_1_and_weights_are_halves_that_are_widened(
    name: str, counts: tuple[int, int], off: float
) -> None:
    ops, held = build_model(name).get_ops(), 0
    assert (len(ops), sum(len(op.inputs()) for op in ops)) == pytest.approx(counts, rel=off)
    for op in ops:
        if op.get_type_name() == "Constant" and op.get_element_type().is_real():
            held += op.data.size * (op.get_element_type() == ov.Type.f16)
            readers = [target.get_node().get_type_name() for target in op.output(0).get_target_inputs()]
            assert op.data.size == 1 or (op.get_element_type(), readers) == (ov.Type.f16, ["Convert"])
    # a batch norm's scale goes into the convolution before it; a few scalars come on top (input transform, sqrt)
    assert 0.99 * NUM_WEIGHTS[name] <= held <= NUM_WEIGHTS[name] + 14
