"""Networks of the zoo's architectures at other sizes, as graphs of placement units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import CoarseGraph, placement_units
from hsdag.models import ModelSpec, find_model
from hsdag.models.networks import BertSizes, DecoderSizes, InceptionSizes, ResNetSizes, llama_decoder, seeded


def draw_network(rng: np.random.Generator) -> CoarseGraph:
    """The units of a network that is converted anew, which takes seconds. Its weights are in f32."""
    from hsdag.models.torch_networks import to_openvino

    spec = _ARCHITECTURES[int(rng.integers(len(_ARCHITECTURES)))](rng)
    return placement_units(read_graph(to_openvino(spec, spec.make_network(0))))


def _resnet(rng: np.random.Generator) -> ModelSpec:
    """3 or 4 stages of 2 to 5 blocks; widths double from 16 to 64 channels."""
    stages, width = int(rng.integers(3, 5)), 8 * int(rng.integers(2, 9))
    depths = tuple(int(depth) for depth in rng.integers(2, 6, stages))
    sizes = ResNetSizes(tuple(width * 2**i for i in range(stages)), depths, stem=width, classes=100)
    return _resized("tiny_resnet", seeded("ResNet", sizes), _images(rng, 64))


def _inception(rng: np.random.Generator) -> ModelSpec:
    """1 to 3, 1 to 4 and 1 or 2 modules of the three kinds; channels are divided by 1 to 8."""
    sizes = InceptionSizes(
        pool_channels=(32, 64, 64)[: int(rng.integers(1, 4))],
        mid_channels=(128, 160, 160, 192)[: int(rng.integers(1, 5))],
        num_expanded=int(rng.integers(1, 3)),
        divisor=int(rng.choice((1, 2, 4, 8))),
        classes=100,
    )
    return _resized("tiny_inception", seeded("Inception", sizes), _images(rng, 96))


def _bert(rng: np.random.Generator) -> ModelSpec:
    """3 to 8 layers of 2 to 12 heads of 32 or 64, 16 to 256 tokens."""
    heads, tokens = int(rng.integers(2, 13)), 16 * int(rng.integers(1, 17))
    width = heads * int(rng.choice((32, 64)))
    sizes = BertSizes(int(rng.integers(3, 9)), width, heads, 4 * width, vocabulary=1000, positions=tokens)
    return _resized("tiny_bert", seeded("Bert", sizes), (1, tokens))


def _llama(rng: np.random.Generator) -> ModelSpec:
    """2 to 6 layers of 2 to 8 heads of 32 or 64 over a quarter or all of them of keys, 16 to 256 tokens."""
    key_heads, shared, head_size = int(rng.integers(1, 3)), int(rng.choice((1, 4))), int(rng.choice((32, 64)))
    heads = key_heads * shared * int(rng.integers(1, 3))
    width = heads * head_size
    sizes = DecoderSizes(
        layers=int(rng.integers(2, 7)),
        hidden=width,
        heads=heads,
        key_heads=key_heads,
        intermediate=3 * width,
        vocabulary=1000,
        tokens=16 * int(rng.integers(1, 17)),
    )
    return llama_decoder("llama", sizes)


def _images(rng: np.random.Generator, least: int) -> tuple[int, ...]:
    """Shape of one image with so many rows and columns at least."""
    size = 32 * int(rng.integers(least // 32, 8))
    return 1, 3, size, size


def _resized(name: str, make_network: Callable[[int], Any], shape: tuple[int, ...]) -> ModelSpec:
    """The model called ``name`` with another network behind inputs of another shape."""
    spec = find_model(name)
    inputs = tuple(replace(model_input, shape=shape) for model_input in spec.inputs)
    return replace(spec, make_network=make_network, inputs=inputs)


_ARCHITECTURES = (_resnet, _inception, _bert, _llama)
