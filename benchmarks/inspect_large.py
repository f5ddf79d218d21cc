"""``hsdag inspect`` of a 100,000-op model: seconds, peak memory, and how both grow from 25,000 ops on.

The model is built from the opset (branches, joins, shared constants) and checked: the counts printed must be those
it was built with. Exit status 1 when the bar (30 s, 2 GB) is missed.

Usage: python benchmarks/inspect_large.py [--ops 100000]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import openvino as ov
from machine import machine
from openvino import opset13

LIMIT_S, LIMIT_BYTES = 30.0, 2e9


def build(num_ops: int, path: Path) -> tuple[int, int]:
    """Blocks of a residual network of small vectors, saved as IR; the number of ops and of edges."""
    x = opset13.parameter([1, 8], np.float32, name="x")
    shared = opset13.constant(np.full((1, 8), 0.5, np.float32))
    node, ops, edges = x, 3, 1
    while ops + 6 <= num_ops:
        own = opset13.constant(np.ones((1, 8), np.float32))
        left = opset13.relu(opset13.add(node, own))
        right = opset13.tanh(opset13.multiply(node, shared))
        node = opset13.add(left, right)
        ops, edges = ops + 6, edges + 8
    while ops < num_ops:
        node, ops, edges = opset13.relu(node), ops + 1, edges + 1
    ov.serialize(ov.Model([opset13.result(node)], [x], "large"), path)
    return ops, edges


def measure(num_ops: int, folder: Path) -> tuple[float, float]:
    path = folder / f"large{num_ops}.xml"
    expected = build(num_ops, path)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "hsdag", "inspect", str(path), "--json"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    elapsed_s = time.perf_counter() - begin
    document = json.loads(answer.stdout)
    if (document["nodes"], document["edges"]) != expected:
        sys.exit(f"inspect counts {document['nodes']} ops and {document['edges']} edges, built were {expected}")
    return elapsed_s, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=int, default=100_000)
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        for num_ops in (arguments.ops // 4, arguments.ops // 2, arguments.ops):
            elapsed_s, peak_bytes = measure(num_ops, Path(name))
            per_op_us = 1e6 * elapsed_s / num_ops
            print(f"{num_ops:8d} ops: {elapsed_s:6.1f} s, {peak_bytes / 1e9:.2f} GB ({per_op_us:.0f} us per op)")
    print(f"bar: {LIMIT_S:.0f} s and {LIMIT_BYTES / 1e9:.0f} GB")
    return 0 if elapsed_s <= LIMIT_S and peak_bytes <= LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
