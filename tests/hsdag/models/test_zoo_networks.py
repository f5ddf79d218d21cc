"""The zoo's torch networks against torch's own layers and plain formulas."""

from __future__ import annotations

import torch
from torch import nn

from hsdag.models.networks import BertSizes
from hsdag.models.torch_networks import BERT_EPS, BertLayer, Bottleneck, random_network, transform_input

SIZES = BertSizes(layers=1, hidden=24, heads=3, intermediate=40, vocabulary=10, positions=8)


def _torch_layer(layer: BertLayer) -> nn.TransformerEncoderLayer:
    """Torch's encoder layer with the weights of ours."""
    theirs = nn.TransformerEncoderLayer(24, 3, 40, 0.0, "gelu", BERT_EPS, batch_first=True)
    attention = layer.attention
    parts = (attention.query, attention.key, attention.value)
    theirs.self_attn.in_proj_weight = nn.Parameter(torch.cat([part.weight for part in parts]))
    theirs.self_attn.in_proj_bias = nn.Parameter(torch.cat([part.bias for part in parts]))
    theirs.self_attn.out_proj.load_state_dict(attention.output.state_dict())
    theirs.linear1, theirs.linear2 = layer.intermediate, layer.output
    theirs.norm1, theirs.norm2 = layer.attention_norm, layer.output_norm
    return theirs.eval()


def test_bert_layer_is_torchs_transformer_encoder_layer() -> None:
    layer = random_network(lambda: BertLayer(SIZES), 0)
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(layer(x, torch.zeros(1, 1, 1, 5)), _torch_layer(layer)(x))


def test_input_transform_goes_from_imagenets_scale_to_minus_one_to_one() -> None:
    pixels = torch.rand(1, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    means, deviations = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    images = (pixels - means[:, None, None]) / deviations[:, None, None]
    torch.testing.assert_close(transform_input(images), (pixels - 0.5) / 0.5, atol=1e-3, rtol=0)


def test_block_without_branch_passes_its_input_on() -> None:
    block = random_network(lambda: Bottleneck(16, 4, 1), 0)
    x = torch.rand(1, 16, 6, 6, generator=torch.Generator().manual_seed(0))  # not negative
    with torch.no_grad():
        for tensor in block.branch[-1].parameters():
            tensor.zero_()
        torch.testing.assert_close(block(x), x)


def test_no_shift_is_near_zero() -> None:
    norm = random_network(lambda: nn.BatchNorm2d(1000), 0)
    assert norm.running_mean is not None
    for shift in (norm.bias.detach(), norm.running_mean):
        assert 0.02 <= float(shift.abs().min()) <= float(shift.abs().max()) <= 0.1 + 1e-6
