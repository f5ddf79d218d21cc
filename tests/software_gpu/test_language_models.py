"""Language models over a CPU and a GPU, and over two GPUs: the same tokens, and weights that each device holds once."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import openvino as ov

import hsdag
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.models import DecoderSizes
from hsdag.models.decoder_graph import decoder_model
from tests.software_gpu.conftest import GPUS
from tests.stateful import EXACT, generate, placement_of, split_after, unsplit

AFTER_LAYER_0 = "model.layers.0/output"
LLAMA = DecoderSizes(2, 64, 4, 2, 96, 160, group=32)
MOE = DecoderSizes(2, 64, 4, 2, 64, 160, group=32, experts=4, active=2)
HEAVY = DecoderSizes(2, 256, 4, 4, 4096, 4096, group=128)
"""So many weights that what a plugin needs beside them does not count."""

CPU = DeviceSpec("CPU", "CPU", EXACT)
FIRST, SECOND = (DeviceSpec(name, name, {"INFERENCE_PRECISION_HINT": "f32"}) for name in GPUS)
Devices: TypeAlias = tuple[DeviceSpec, DeviceSpec]


def test_a_llama_on_two_gpus_under_hetero_or_on_cpu_and_gpu_side_by_side_generates_64_tokens_as_the_cpu_does() -> None:
    check_tokens(decoder_model("llama", LLAMA, "int8", 0), hetero=(FIRST, SECOND), side_by_side=(CPU, FIRST))


def test_a_mixture_of_experts_on_cpu_and_gpu_under_hetero_or_on_two_gpus_side_by_side_does_so_too() -> None:
    check_tokens(decoder_model("moe", MOE, "int4", 0), hetero=(CPU, FIRST), side_by_side=(FIRST, SECOND))


def check_tokens(model: ov.Model, hetero: Devices, side_by_side: Devices) -> None:
    core, expected, halves = ov.Core(), unsplit(model), split_after(graph_of(model), AFTER_LAYER_0)
    assert expected.least_lead > 1e-3  # by which devices may differ
    compiled = placement_of(model, halves, hetero).compile(core, model)
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
    assert generate(compiled.create_infer_request()).tokens == expected.tokens
    with hsdag.compile_work_conserving(model, placement_of(model, halves, side_by_side), core) as executor:
        assert generate(executor.create_infer_request()).tokens == expected.tokens


def memory_bytes(core: ov.Core, device: str) -> int:
    """What a GPU has allocated, of all kinds."""
    return sum(core.get_property(device, "GPU_MEMORY_STATISTICS").values())


def test_each_gpu_holds_the_weights_of_its_layers_once_and_compressed() -> None:
    """In f32 the plugin widens the scales, of which weights of four bits have many."""
    model, core = decoder_model("heavy", HEAVY, "int4", 0), ov.Core()
    graph = graph_of(model)
    devices = np.asarray(split_after(graph, AFTER_LAYER_0))
    promised = np.bincount(devices, graph.weight_bytes)
    before = [memory_bytes(core, name) for name in GPUS]
    compiled = placement_of(model, devices.tolist(), (FIRST, SECOND)).compile(core, model)
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 2
    found = [memory_bytes(core, name) - b for name, b in zip(GPUS, before, strict=True)]
    assert (promised <= found).all()
    np.testing.assert_allclose(found, promised, rtol=0.12)
