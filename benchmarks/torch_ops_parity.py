"""The torch op library beside OpenVINO's CPU device in f32: the largest relative difference by model and op type.

Every op gets the inputs that OpenVINO computed, so that errors do not add up; the last line of a model compares the
outputs of the whole network run by torch alone. A difference is relative to the largest magnitude of OpenVINO's
output. Exit status 1 when one exceeds 1e-4, or when no model was compared. TF32 is off.

Usage: python benchmarks/torch_ops_parity.py [--device cuda:0] [MODEL ...]   (default: cpu, the whole zoo)
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import torch
from machine import machine
from numpy.typing import NDArray

from hsdag.models import ModelSpec, build_model, find_model, list_models
from hsdag.runtime.torch_ops import allow_tf32
from hsdag.runtime.torch_ops.parity import op_differences, relative_difference, run_model, run_openvino

BAR = 1e-4
VOCABULARY = 100  # of the smallest model


def inputs_of(spec: ModelSpec, seed: int = 0) -> list[NDArray[Any]]:
    """Normal numbers for images; token numbers, and masks of both kinds, for text."""
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(given.shape, dtype=np.float32)
        if given.element_type == "f32"
        else rng.integers(0, VOCABULARY if given.name == "input_ids" else 2, given.shape)
        for given in spec.inputs
    ]


def compare(spec: ModelSpec, device: torch.device) -> float:
    """Print the table of one model; its largest difference."""
    model, inputs = build_model(spec.name), inputs_of(spec)
    counts: Counter[str] = Counter()
    worst: defaultdict[str, float] = defaultdict(float)
    for op in op_differences(model, inputs, device):
        counts[op.op_type] += 1
        worst[op.op_type] = max(worst[op.op_type], op.relative)
    outputs = zip(run_model(model, inputs, device), run_openvino(model, inputs), strict=True)
    whole = max(relative_difference(got, wanted) for got, wanted in outputs)
    print(f"\n{spec.name}: {sum(counts.values())} ops compared")
    for op_type in sorted(counts):
        print(f"  {op_type:28}{counts[op_type]:5d} ops  {worst[op_type]:.1e}")
    print(f"  {'whole network':37} {whole:.1e}")
    return max(*worst.values(), whole)


def main() -> int:
    parser = argparse.ArgumentParser(description="Largest difference of the torch op library from OpenVINO.")
    parser.add_argument("models", nargs="*", help="names from 'hsdag models list'")
    parser.add_argument("--device", default="cpu", help="a torch device")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    allow_tf32(False)
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print(f"{machine()}; ops in torch on {on}")
    specs = [find_model(name) for name in arguments.models] or list(list_models())
    with torch.inference_mode():
        largest = [compare(spec, device) for spec in specs]
    print(f"\nlargest of all: {max(largest):.1e} (bar {BAR:.0e})")
    return 0 if max(largest) <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
