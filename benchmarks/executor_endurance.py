"""Whether 100,000 inferences, with cancellations, failures and recompilations between them, leave anything behind.

A model of two branches is placed on two CPU devices of one thread each, its co-location sets drawn, and run by the
work-conserving executor with four requests in flight. One branch hands on tensors of unknown size. Drawn at random,

- an inference is cancelled, at once or after up to a millisecond;
- an input does not fit the model, which shows in mid-run only, or a device fails on it;
- the model is compiled for another placement; the old one is closed, or forgotten, sometimes in mid-run;
- a device refuses to compile its part, and the compilation is repeated;
- a device hangs, so that the time limit ends the inference, and its part is compiled again;
- requests are dropped and others made.

Every output of an inference that ended well is compared with the plain CPU's, and every error with the one that was
provoked. Memory of the process, its threads and its file handles are read after the first 1,000 inferences and after
each tenth of all. Threads and handles may not become more. Memory may grow by 16 MB, which is what allocators keep:
one result lost in every inference would be 1,600 MB, one model lost in every compilation 60 MB. Exit status 1 when an
output is wrong, an error unexpected, or a bar missed.

Usage: python benchmarks/executor_endurance.py [--inferences 100000] [--hangs 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil
from machine import machine
from openvino import opset13

import hsdag
from hsdag.ir.errors import DeviceError, ExecutionError
from hsdag.runtime.openvino_backend import WorkConservingModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.runtime.openvino_backend.placing import drawn

SIZE = 4096
IN_FLIGHT = 4
WARM_UP = 1000
MOST_GROWTH_MB = 16.0
LIMIT_S, SHORT_LIMIT_S = 60.0, 1.0
BALANCED = 1
"""The seed of a placement with parts on both devices."""
FAILS, HANGS = 1e6, 1e7
"""The first number of an input from which on a device fails, with another size at each number, and hangs."""
PATIENCE_S = 4.0
"""For so long no thread may end before threads are counted."""
FRAGILE = "fragile"
SIDE, TURNS = 256, 3000
"""Of the loop that stands for a device that hangs: its matrices, and its turns then, which take seconds."""
FATES = {"right": 0.84, "cancelled": 0.08, "input refused": 0.04, "device failed": 0.04}
REASONS = {
    "cancelled": "was cancelled",
    "input refused": "Reshape",
    "device failed": FRAGILE,
    "device hung": f"took more than {SHORT_LIMIT_S:g} s",
    "closed in mid-run": "was closed while an inference ran",
}


class RefusingCore:
    """An ov.Core that refuses to compile once it is told to."""

    def __init__(self) -> None:
        self.core, self.refuses = ov.Core(), False

    def compile_model(self, *args: Any) -> Any:
        if self.refuses:
            self.refuses = False
            raise RuntimeError("no memory left on the device")
        return self.core.compile_model(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)


def fragile(x: ov.Node) -> ov.Node:
    """x through a reshape that fails where the first number asks for it, since one size is computed from it."""
    first = opset13.slice(x, [0, 0], [1, 1], [1, 1], [0, 1])
    fails = opset13.logical_and(opset13.greater(first, np.float32(FAILS / 2)), opset13.less(first, np.float32(HANGS)))
    number = opset13.multiply(opset13.convert(fails, np.float32), opset13.subtract(first, np.float32(FAILS)))
    surplus = opset13.reshape(opset13.convert(number, np.int64), np.asarray([1], np.int64), special_zero=False)
    width = opset13.add(np.asarray([SIZE], np.int64), surplus)
    pattern = opset13.concat([np.asarray([1], np.int64), width], 0)
    return opset13.reshape(x, pattern, special_zero=False, name=FRAGILE)


def patient(x: ov.Node) -> ov.Node:
    """x through a loop that goes round for seconds where the first number asks for it."""
    first = opset13.slice(x, [0, 0], [1, 1], [1, 1], [0, 1])
    hangs = opset13.convert(opset13.greater_equal(first, np.float32(HANGS)), np.int64)
    turns = opset13.multiply(hangs, np.asarray([[TURNS]], np.int64))
    side = opset13.parameter([SIDE, SIDE], np.float32)
    again = opset13.multiply(opset13.tanh(opset13.matmul(side, side, False, False)), np.float32(0.5))
    body = ov.Model([opset13.constant(np.asarray(True)), again], [side], "work")
    count = opset13.reshape(turns, np.asarray([], np.int64), special_zero=False)
    loop = opset13.loop(count, opset13.constant(np.asarray(True)))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(side, opset13.broadcast(first, np.asarray([SIDE, SIDE], np.int64)).output(0), again.output(0))
    work = opset13.reduce_max(loop.get_iter_value(again.output(0), -1), np.asarray([0, 1], np.int64))
    return opset13.add(x, opset13.multiply(work, np.float32(0)))


def branches() -> ov.Model:
    """x, whose second branch takes the shape that another input asks for, and a join of both."""
    x = opset13.parameter([1, SIZE], np.float32, name="x")
    shape = opset13.parameter([2], np.int64, name="shape")
    stem = opset13.relu(x)
    whole = opset13.reshape(patient(fragile(opset13.abs(stem))), np.asarray([1, SIZE], np.int64), special_zero=False)
    left = opset13.tanh(whole)
    right = opset13.sigmoid(opset13.reshape(opset13.sin(stem), shape, special_zero=False))
    flat = opset13.reshape(opset13.cos(right), np.asarray([1, SIZE], np.int64), special_zero=False)
    return ov.Model([opset13.result(opset13.add(left, flat)), opset13.result(left)], [x, shape], "branches")


@dataclass(frozen=True, eq=False)
class Sample:
    """An input and what the plain CPU makes of it."""

    inputs: tuple[Any, Any]
    outputs: tuple[Any, ...]

    def is_matched(self, outputs: Any) -> bool:
        """Whether outputs are the CPU's."""
        return all(np.allclose(outputs[k], output, atol=1e-5) for k, output in enumerate(self.outputs))


def samples(core: ov.Core, model: ov.Model, rng: np.random.Generator) -> list[Sample]:
    """Random inputs, so unlike that no output is taken for another's."""
    compiled, found = core.compile_model(model.clone(), "CPU"), []
    for k in range(32):
        x = rng.standard_normal((1, SIZE)).astype(np.float32)
        shape = np.asarray([1 << k % 8, SIZE >> k % 8], np.int64)
        outputs = compiled([x, shape])
        found.append(Sample((x, shape), tuple(np.array(outputs[port]) for port in range(2))))
    return found


@dataclass(frozen=True)
class Held:
    """What the process holds."""

    memory_mb: float
    threads: int
    handles: int

    def __str__(self) -> str:
        return f"{self.memory_mb:.1f} MB, {self.threads} threads, {self.handles} file handles"


def held() -> Held:
    """Now, after the threads of models that are gone had time to end, the one that hung longest included."""
    process, fewest, since_s = psutil.Process(), sys.maxsize, time.monotonic()
    while time.monotonic() < since_s + PATIENCE_S:
        gc.collect()
        if process.num_threads() < fewest:
            fewest, since_s = process.num_threads(), time.monotonic()
        time.sleep(0.3)
    return Held(process.memory_info().rss / 2**20, process.num_threads(), process.num_fds())


class Endurance:
    """Inferences of one model, and what came of them by what was provoked."""

    def __init__(self, seed: int) -> None:
        self.rng, self.core, self.model = np.random.default_rng(seed), RefusingCore(), branches()
        self.samples = samples(self.core.core, self.model, self.rng)
        self.counts: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.num_hangs = self.num_misfits = 0
        self.compiled = self.compile(LIMIT_S)
        self.requests = [self.compiled.create_infer_request() for _ in range(IN_FLIGHT)]

    @property
    def num_inferences(self) -> int:
        """That were started."""
        return sum(self.counts.values()) - self.counts["compiled"] - self.counts["compilation refused"]

    def compile(self, limit_s: float, seed: int | None = None) -> WorkConservingModel:
        """For a placement drawn anew, or by a seed; now and then after a compilation that a device refused."""
        placement = drawn(self.model, int(self.rng.integers(1 << 30)) if seed is None else seed)
        if self.rng.random() < 0.25:
            self.core.refuses = True
            try:
                hsdag.compile_work_conserving(self.model, placement, self.core)
                self.surprises.append("a refused part was compiled")
            except DeviceError:
                self.counts["compilation refused"] += 1
        self.counts["compiled"] += 1
        return hsdag.compile_work_conserving(self.model, placement, self.core, time_limit_s=limit_s)

    def start(self, request: Any, fate: str) -> Sample:
        """Start an inference that is to end so."""
        sample = self.samples[int(self.rng.integers(len(self.samples)))]
        x, shape = sample.inputs
        if fate == "input refused":
            self.num_misfits += 1
            shape = np.asarray([SIZE + 1, self.num_misfits], np.int64)  # never the same twice: see docs/executor.md
        elif fate in ("device failed", "device hung"):
            x = x.copy()
            self.num_misfits += 1
            x[0, 0] = FAILS + self.num_misfits if fate == "device failed" else HANGS
        request.start_async([x, shape])
        return sample

    def end(self, request: Any, fate: str, sample: Sample) -> None:
        """Wait, and count how it ended."""
        try:
            request.wait()
        except ExecutionError as error:
            if REASONS.get(fate, "no reason") not in str(error):
                self.surprises.append(f"{fate}: {error}")
            self.counts[fate] += 1
            return
        if fate in ("input refused", "device failed", "device hung"):
            self.surprises.append(f"{fate}: it ended well")
        elif not sample.is_matched(request.results):
            self.surprises.append(f"{fate}: a wrong output")
        self.counts["right" if fate == "right" else f"right, to be {fate}"] += 1

    def turn(self) -> None:
        """An inference on every request at once."""
        fates = self.rng.choice(list(FATES), len(self.requests), p=list(FATES.values())).tolist()
        started = [self.start(*pair) for pair in zip(self.requests, fates, strict=True)]
        if "cancelled" in fates and self.rng.random() < 0.7:
            time.sleep(self.rng.uniform(0, 1e-3))
        for request, fate in zip(self.requests, fates, strict=True):
            if fate == "cancelled":
                request.cancel()
        for request, fate, sample in zip(self.requests, fates, started, strict=True):
            self.end(request, fate, sample)
        if self.rng.random() < 0.02:
            self.requests[int(self.rng.integers(IN_FLIGHT))] = self.compiled.create_infer_request()
        if self.rng.random() < 0.02:
            self.recompile()

    def recompile(self) -> None:
        """For another placement; the old one is closed, closed in mid-run, or forgotten."""
        old, way = self.compiled, str(self.rng.choice(["closed", "closed in mid-run", "forgotten"]))
        if way == "closed in mid-run":
            started = [self.start(request, way) for request in self.requests]
            old.close()
            for request, sample in zip(self.requests, started, strict=True):
                self.end(request, way, sample)
        elif way == "closed":
            old.close()
        self.compiled = self.compile(LIMIT_S)
        self.requests = [self.compiled.create_infer_request() for _ in range(IN_FLIGHT)]

    def until(self, inferences: int, hangs: int) -> None:
        """Go on until there were so many inferences, hangs at the end."""
        while self.num_inferences < inferences:
            self.turn()
        while self.num_hangs < hangs:
            self.hang()

    def settled(self) -> Held:
        """What the process holds with one model that is new, so that readings are of the same."""
        self.compiled.close()
        self.compiled, self.requests = self.compile(LIMIT_S, BALANCED), []
        self.requests = [self.compiled.create_infer_request() for _ in range(IN_FLIGHT)]
        for fate in ("right", "right"):
            for request in self.requests:
                self.end(request, fate, self.start(request, fate))
        return held()

    def hang(self) -> None:
        """A device that hangs, in a model of its own; behind it the same request works again."""
        self.num_hangs += 1
        with self.compile(SHORT_LIMIT_S) as compiled:
            request = compiled.create_infer_request()
            for fate in ("device hung", "right"):
                self.end(request, fate, self.start(request, fate))


def missed(first: Held, readings: list[Held]) -> list[str]:
    """The bars that readings after the first do not keep."""
    memory_mb = max((each.memory_mb for each in readings), default=first.memory_mb) - first.memory_mb
    threads = readings[-1].threads - first.threads
    handles = max((each.handles for each in readings), default=first.handles) - first.handles
    print(f"growth {memory_mb:.1f} MB (bar {MOST_GROWTH_MB:.0f}), {threads} threads and {handles} file handles (bar 0)")
    grown = {"memory": memory_mb > MOST_GROWTH_MB, "threads": threads > 0, "file handles": handles > 0}
    return [f"{name} grew" for name, has_grown in grown.items() if has_grown]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inferences", type=int, default=100_000)
    parser.add_argument("--hangs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(machine())
    run = Endurance(options.seed)
    warm_up = min(WARM_UP, options.inferences // 2)
    run.until(warm_up, 1)
    readings = [run.settled()]
    print(f"after {run.num_inferences:6d} inferences to warm up: {readings[0]}", flush=True)
    for k in range(1, 11):
        run.until(warm_up + (options.inferences - warm_up) * k // 10, options.hangs * k // 10)
        readings.append(run.settled())
        print(f"after {run.num_inferences:6d} inferences: {readings[-1]}", flush=True)
    for name, count in sorted(run.counts.items()):
        print(f"{count:7d} {name}")
    failures = missed(readings[0], readings[1:]) + run.surprises
    print(f"{run.num_inferences} inferences, {len(run.surprises)} that did not end as they should")
    for failure in failures[:20]:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
