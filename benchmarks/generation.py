"""Whether language models over two devices generate the tokens that the whole model does, under both executors.

Each model is cut in two behind a layer, compiled under HETERO and by the work-conserving executor, and generates 64
tokens greedily: a prompt, then one token at a time with the state it keeps. Prints for each model whether the tokens
are those of the whole model on the CPU, and by how much the likeliest token led where it led least: devices may differ
by less. Exit status 1 when a token differs.

Usage: python benchmarks/generation.py [--devices A,B] [--models tiny_stateful_llama_int4,...] [--layer 1]
       tests/software_gpu/run .venv/bin/python benchmarks/generation.py --devices "GPU.0[...],GPU.1[...]"
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import openvino as ov
from machine import machine

import hsdag
from hsdag.ir import graph_of, parse_devices
from hsdag.models import build_model, list_language_models

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.stateful import EXACT, generate, placement_of, split_after, unsplit

CPUS = ",".join(f"{name}=CPU[{';'.join(f'{key}={value}' for key, value in EXACT.items())}]" for name in "AB")


def check(name: str, devices: str, layer: int) -> bool:
    """Whether a model generates the same over the devices, printed for both executors."""
    model, core, specs = build_model(name), ov.Core(), parse_devices(devices)
    expected, cut = unsplit(model), split_after(graph_of(model), f"model.layers.{layer}/output")
    compiled = placement_of(model, cut, specs).compile(core, model)
    under_hetero = generate(compiled.create_infer_request()).tokens == expected.tokens
    with hsdag.compile_work_conserving(model, placement_of(model, cut, specs), core) as executor:
        side_by_side = generate(executor.create_infer_request()).tokens == expected.tokens
    submodels = compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")
    led = f"the likeliest token led by {expected.least_lead:.1e} at least"
    print(f"{name}: HETERO {under_hetero} ({submodels} submodels), ours {side_by_side}; {led}", flush=True)
    return under_hetero and side_by_side


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default=CPUS)
    parser.add_argument("--models", default=",".join(spec.name for spec in list_language_models() if spec.is_tiny))
    parser.add_argument("--layer", type=int, default=1)
    arguments = parser.parse_args()
    print(machine())
    same = [check(name, arguments.devices, arguments.layer) for name in arguments.models.split(",")]
    print(f"{sum(same)} of {len(same)} models generate the same 64 tokens")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
