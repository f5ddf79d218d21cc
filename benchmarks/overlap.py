"""How much of a second device a model makes use of, on two CPU devices of one thread: splits and shards, or copies.

``hsdag place`` searches for latency, and its own final comparison is what is printed: the best split and the best way
to divide the model (shards) over the better device alone, the same split under HETERO, and the whole CPU with both
threads; beside it what two copies reach side by side. Bars of the better one of split and shards: inception_v3 0.68,
resnet50 0.72, encoder (BERT base's shape, 128 tokens) and vit (ViT-B/16) 0.62, prefill (128 tokens of a Llama-like
decoder) 0.65. With ``--copies`` a copy on each device, dispatched by hsdag, is compared with the sum of what devices
reach side by side (bar 0.95), and with AUTO under CUMULATIVE_THROUGHPUT (bar 1). With ``--unequal`` the second device
has other properties, such as INFERENCE_NUM_THREADS=2, and the answer is compared with the harmonic bound of both (bar
1.15 where equal devices are within 1.15 of theirs). Exit status 1 when a bar is missed.

Usage: python benchmarks/overlap.py [--model encoder] [--budget 60s] [--runs 5] [--copies] [--unequal PROPERTIES]
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from machine import ONE, options
from torch import nn
from torch.nn import functional

import hsdag
from hsdag.ir.device import parse_devices
from hsdag.ir.placement.copies import compile_copies
from hsdag.models import save_model_files
from hsdag.models.networks import ModelSpec, llama_decoder
from hsdag.models.networks import _bert as bert
from hsdag.models.sizes import BertSizes, DecoderSizes, ModelInput
from hsdag.models.torch_networks import BertLayer, random_network, to_openvino
from hsdag.runtime.measuring.inferences import steady_period_s

BARS = {"inception_v3": 0.68, "resnet50": 0.72, "encoder": 0.62, "vit": 0.62, "prefill": 0.65}
DEVICES = f"CPU_0=CPU[{ONE}],CPU_1=CPU[{ONE}]"
COPIES_BAR, HARMONIC = 0.95, "the harmonic bound"


def rates(models: list[Any], in_flight: int, seconds: float) -> list[float]:
    """Inferences a second of models that run at the same time, each with so many requests in flight."""

    def rate(model: Any) -> float:
        requests = [model.create_infer_request() for _ in range(in_flight)]
        steady_period_s(requests, in_flight)
        each_s = steady_period_s(requests, 2 * in_flight)
        return 1.0 / steady_period_s(requests, max(int(seconds / each_s), in_flight))

    return list(ThreadPoolExecutor(len(models)).map(rate, models))


def side_by_side(path: Path, seconds: float, devices: str) -> float:
    """Inferences of two copies, one on each device at the same time, over those of one device alone."""
    core, models = ov.Core(), []
    for spec in parse_devices(devices):
        spec.register(core)
        models.append(core.compile_model(path, spec.openvino_name))
    alone = [rates([model], 1, seconds)[0] for model in models]
    return float(sum(rates(models, 1, seconds)) / np.mean(alone))


def copies(path: Path, seconds: float) -> dict[str, float]:
    """Inferences a second of copies, over those of both devices by themselves at the same time, and over AUTO's."""
    core, specs = ov.Core(), parse_devices(DEVICES)
    copied = compile_copies(core, core.read_model(path), [(spec, None) for spec in specs])
    throughput = {"PERFORMANCE_HINT": "THROUGHPUT"}
    own = [core.compile_model(path, spec.openvino_name, throughput) for spec in specs]
    names = ",".join(spec.openvino_name for spec in specs)
    auto = core.compile_model(path, f"AUTO:{names}", {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"})
    turns = ((own, 2), ([copied], copied.num_in_flight), ([auto], 4), (own[:1], 2))
    rates([copied], copied.num_in_flight, seconds)  # warms up
    found = [[sum(rates(models, in_flight, seconds)) for models, in_flight in turns] for _ in range(3)]
    both, copy, auto_rate, one = np.median(found, axis=0).tolist()
    return {"both devices": copy / both, "AUTO": copy / auto_rate, "one device": copy / one}


def ratios(path: Path, devices: str, budget: str, seed: int) -> dict[str, float]:
    """Medians of the final comparison over that of the better device."""
    result = hsdag.place(path, devices, budget=budget, seed=seed)
    median_s = {row.name: row.median for row in result.rows}
    alone_s = [median_s[name] for name in ("CPU_0", "CPU_1") if name in median_s]
    single_s = min(alone_s)

    def best(start: str) -> float:
        return min((value for name, value in median_s.items() if name.startswith(start)), default=np.nan) / single_s

    kinds = {"split": "placement", "shards": "shards", "split under HETERO": "HETERO:placement"}
    found = {kind: best(start) for kind, start in kinds.items()}
    found["better of both"] = float(np.nanmin([found["split"], found["shards"], 1.0]))
    found[HARMONIC] = 1.0 / sum(single_s / each for each in alone_s)
    return {**found, "whole CPU": median_s.get("CPU", np.nan) / single_s}


class Vit(nn.Module):
    """A vision transformer with patches of 16 x 16 (Dosovitskiy et al. 2021), norms before each part."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, sizes.hidden, 16, 16, bias=False)
        self.first = nn.Embedding(1, sizes.hidden)
        self.positions = nn.Embedding(sizes.positions, sizes.hidden)
        self.layers = nn.ModuleList(BertLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, 224, 224] -> logits [B, vocabulary]."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.weight[None], patches), dim=1) + self.positions.weight
        for layer in self.layers:
            x = x + layer.attention(layer.attention_norm(x), torch.zeros(()))
            x = x + layer.output(functional.gelu(layer.intermediate(layer.output_norm(x))))
        logits: torch.Tensor = self.head(self.norm(x[:, 0]))
        return logits


def network(name: str, layers: int, path: Path) -> Path:
    """A network of this benchmark, or a model of the zoo, as f32."""
    if name == "encoder":
        spec = bert(name, "an encoder", BertSizes(layers, 768, 12, 3072, vocabulary=1000, positions=512))
        spec = replace(spec, inputs=tuple(replace(each, shape=(1, 128)) for each in spec.inputs))
    elif name == "vit":
        sizes = BertSizes(layers, 768, 12, 3072, vocabulary=1000, positions=197)
        given = (ModelInput("images", (1, 3, 224, 224), "f32"),)
        spec = ModelSpec(name, "", given, ("logits",), lambda seed: random_network(lambda: Vit(sizes), seed))
    elif name == "prefill":
        spec = llama_decoder(name, DecoderSizes(layers, 768, 12, 4, 2048, vocabulary=4096, tokens=128))
    else:
        return save_model_files(name, path)
    if callable(spec.network):
        made = to_openvino(spec.network(0), spec.name, spec.inputs, spec.outputs)
    else:
        made = spec.build(0)
    ov.save_model(made, path, compress_to_fp16=False)
    return path


def main() -> int:
    given = options(
        __doc__,
        model="inception_v3",
        layers=(12, "of encoder, vit and prefill"),
        budget="60s",
        runs=5,
        seconds=(5.0, "of each way to run two copies"),
        copies=(False, "compare copies, for throughput"),
        unequal=(None, "properties of the second device, in place of those of the first"),
    )
    devices = DEVICES if given.unequal is None else f"CPU_0=CPU[{ONE}],CPU_1=CPU[{given.unequal}]"
    with tempfile.TemporaryDirectory() as folder:
        path = network(given.model, given.layers, Path(folder) / f"{given.model}.xml")
        if given.copies:
            found = copies(path, given.seconds)
            print(", ".join(f"{value:.3f} times the inferences of {name}" for name, value in found.items()))
            return 0 if found["both devices"] >= COPIES_BAR and found["AUTO"] >= 1.0 else 1
        print(f"two copies side by side: {side_by_side(path, given.seconds, devices):.2f} times the inferences of one")
        runs = [ratios(path, devices, given.budget, seed) for seed in range(given.runs)]
    for name in runs[0]:
        print(f"{name} over the better device: " + ", ".join(f"{each[name]:.3f}" for each in runs))
    bars = [BARS.get(given.model, 1.0) if given.unequal is None else 1.15 * each[HARMONIC] for each in runs]
    kept = sum(each["better of both"] <= bar for each, bar in zip(runs, bars, strict=True))
    print(f"{kept} of {given.runs} runs keep the bar of {', '.join(f'{bar:.2f}' for bar in dict.fromkeys(bars))}")
    return 0 if kept == given.runs else 1


if __name__ == "__main__":
    sys.exit(main())
