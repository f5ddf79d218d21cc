"""Whether the work-conserving executor survives inferences that go wrong, and leaves nothing behind.

A model of two branches runs on two CPU devices with four requests in flight. Inferences are cancelled, get inputs that
do not fit, and the model is compiled for another placement. Every output is compared with the plain CPU's. Threads and
file handles may not become more, and memory may grow by 16 MB: one result lost in every inference would be 1,600 MB.
Exit status 1 where a bar is missed.

    python benchmarks/faults.py [--inferences 100000]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
from machine import machine
from openvino import opset13

import hsdag
from hsdag.ir.errors import ExecutionError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.hsdag.runtime.executor.placing import drawn

SIZE, IN_FLIGHT, MOST_GROWTH_MB = 4096, 4, 16.0
BALANCED = 1
"""The seed of a placement with parts on both devices."""
FATES = {"right": 0.88, "cancelled": 0.08, "refused": 0.04}
REASONS = {"cancelled": "was cancelled", "refused": "Reshape"}


def branches() -> ov.Model:
    """x, whose second branch takes the shape that another input asks for, and a join of both."""
    x = opset13.parameter([1, SIZE], np.float32, name="x")
    shape = opset13.parameter([2], np.int64, name="shape")
    stem = opset13.relu(x)
    right = opset13.sigmoid(opset13.reshape(opset13.sin(stem), shape, special_zero=False))
    flat = opset13.reshape(opset13.cos(right), np.asarray([1, SIZE], np.int64), special_zero=False)
    return ov.Model([opset13.result(opset13.add(opset13.tanh(stem), flat))], [x, shape], "branches")


def resources() -> tuple[float, int, int]:
    """MB, threads and file handles of the process, once threads of models that are gone had time to end."""
    process = psutil.Process()
    for _ in range(10):
        gc.collect()
        time.sleep(0.3)
    return process.memory_info().rss / 2**20, process.num_threads(), process.num_fds()


class Endurance:
    """Inferences of one model on a work-conserving executor, and how they ended."""

    def __init__(self) -> None:
        self.rng, self.core, self.model = np.random.default_rng(0), ov.Core(), branches()
        self.counts, self.surprises, self.samples = Counter[str](), list[str](), list[tuple[list[Any], Any]]()
        plain = self.core.compile_model(self.model.clone(), "CPU")
        for k in range(32):
            x = self.rng.standard_normal((1, SIZE)).astype(np.float32)
            inputs = [x, np.asarray([1 << k % 8, SIZE >> k % 8], np.int64)]
            self.samples.append((inputs, np.array(plain(inputs)[0])))
        self.compile(BALANCED)

    def compile(self, seed: int) -> None:
        """For a placement by its seed."""
        placement = drawn(self.model, seed)
        self.running = hsdag.compile_work_conserving(self.model, placement, self.core, time_limit_s=60.0)
        self.requests = [self.running.create_infer_request() for _ in range(IN_FLIGHT)]

    def turn(self) -> None:
        """An inference on every request at once."""
        fates = self.rng.choice(list(FATES), IN_FLIGHT, p=list(FATES.values())).tolist()
        chosen = [self.samples[int(self.rng.integers(len(self.samples)))] for _ in self.requests]
        for number, (request, fate, (inputs, _)) in enumerate(zip(self.requests, fates, chosen, strict=True)):
            misfit = np.asarray([SIZE + 1, self.counts.total() + number], np.int64)  # never the same twice
            request.start_async([inputs[0], misfit] if fate == "refused" else inputs)
        for request, fate in zip(self.requests, fates, strict=True):
            if fate == "cancelled":
                request.cancel()
        for request, fate, (_, output) in zip(self.requests, fates, chosen, strict=True):
            self.end(request, fate, output)

    def end(self, request: Any, fate: str, output: np.ndarray) -> None:
        """Wait, and compare how it ended with what was provoked."""
        self.counts[fate] += 1
        try:
            request.wait()
        except ExecutionError as error:
            if REASONS.get(fate, "no reason") not in str(error):
                self.surprises.append(f"{fate}: {error}")
            return
        if fate == "refused" or not np.allclose(request.results[0], output, atol=1e-5):
            self.surprises.append(f"{fate}: it ended well, or with a wrong output")

    def until(self, inferences: int) -> tuple[float, int, int]:
        """Go on until there were so many; what the process then holds, with one model that is new."""
        while self.counts.total() < inferences:
            self.turn()
            if self.rng.random() < 0.02:
                self.running.close()
                self.compile(int(self.rng.integers(1 << 30)))
        self.running.close()
        self.compile(BALANCED)
        self.turn()
        return resources()


def executor(inferences: int) -> bool:
    """Whether inferences end as they should, and nothing is left of them."""
    run = Endurance()
    readings = [run.until(inferences * part // 11) for part in range(1, 12)]  # the first part warms up
    run.running.close()
    growth = [max(each[k] for each in readings[1:]) - readings[0][k] for k in range(3)]
    print(f"{run.counts.total()} inferences {dict(run.counts)}, {len(run.surprises)} that did not end as they should")
    print(f"growth {growth[0]:.1f} MB (bar {MOST_GROWTH_MB:.0f}), {growth[1]} threads and {growth[2]} handles (bar 0)")
    for surprise in run.surprises[:10]:
        print(f"FAILED: {surprise}")
    return not run.surprises and growth[0] <= MOST_GROWTH_MB and readings[-1][1] <= readings[0][1] and growth[2] <= 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inferences", type=int, default=100_000)
    given = parser.parse_args()
    print(machine())
    return 0 if executor(given.inferences) else 1


if __name__ == "__main__":
    sys.exit(main())
