"""Whether searches and the executor survive what goes wrong, and leave nothing behind.

``candidates``: a worker whose compilations go wrong for real (tests/runtime/measuring/faulty_worker.py) measures
random placements, of which every other one crashes, aborts, exits, hangs, breaks off in the middle of an answer or
takes all memory. A fault is survived if it is recorded with the right reason and the next placement is measured in a
new worker.

``executor``: a model of two branches runs under the work-conserving executor on two CPU devices with four requests in
flight. Inferences are cancelled, get inputs that do not fit, and the model is compiled for another placement. Every
output is compared with the plain CPU's. Threads and file handles may not become more, and memory may grow by 16 MB:
one result lost in every inference would be 1,600 MB. Exit status 1 where a bar is missed.

    python benchmarks/faults.py [--candidates 100] [--limit 12] [--inferences 100000]
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
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
from hsdag.models import save_model_files
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import resolve_devices
from hsdag.runtime.problem.plan import Plan
from hsdag.scoring.measured import MeasuredEvaluator
from hsdag.scoring.recording import RecordingEvaluator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.runtime.executor.placing import drawn

DEVICES = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"
FAULTY = Path(__file__).resolve().parent.parent / "tests" / "runtime" / "measuring" / "faulty_worker.py"
MEMORY_BYTES = 1.5e9
"""What the worker may take, so that the one that takes all does not need minutes."""
FAULTS = {
    "crash": "SIGSEGV",
    "abort": "SIGABRT",
    "exit": "exited with code 7",
    "hang": "no answer within",
    "half": "no answer within",
    "eat": "of memory",
}
"""Faults, and what the reason of each has to say."""
SIZE, IN_FLIGHT, MOST_GROWTH_MB = 4096, 4, 16.0
BALANCED = 1
"""The seed of a placement with parts on both devices."""
FATES = {"right": 0.88, "cancelled": 0.08, "refused": 0.04}
REASONS = {"cancelled": "was cancelled", "refused": "Reshape"}


def survived(fault: str, model: Path, count: int, limit_s: float, rng: np.random.Generator) -> int:
    """How many of ``count`` faulty candidates were recorded, and followed by one that was measured."""
    devices, command = resolve_devices(DEVICES, None), (sys.executable, str(FAULTY), fault, "2")
    with Session(model, devices, worker_command=command, candidate_limit_s=limit_s) as session:
        session.client.memory_bytes = MEMORY_BYTES
        problem = session.problem()
        recorder = RecordingEvaluator(MeasuredEvaluator(problem, devices.placed, session.runner))
        session.client.restart()  # a worker that has compiled nothing
        found, plans = 0, dict[Plan, None]()
        while len(plans) < 2 * count:  # none is compiled twice, and none is of one device
            plan = Plan(rng.integers(0, 2, problem.num_units))
            plans |= {plan: None} if plan.is_split else {}
        pairs = iter(plans)
        for sound, faulty in zip(pairs, pairs, strict=True):
            (first,), (second,) = recorder.evaluate([sound]), recorder.evaluate([faulty])
            is_survived = first.failure is None and FAULTS[fault] in (second.failure or "")
            found += is_survived
            if not is_survived:
                print(f"{fault}: a sound candidate gave {first}, a faulty one {second}")
    return found


def candidates(count: int, limit_s: float) -> bool:
    """Whether all faulty candidates are survived."""
    found, rng = 0, np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        model = save_model_files("tiny_resnet", Path(folder) / "model.xml")
        for number, fault in enumerate(FAULTS):
            begin, end = (count * (number + k) // len(FAULTS) for k in (0, 1))
            found += survived(fault, model, end - begin, limit_s, rng)
    print(f"{found} of {count} crashing or hanging candidates survived", flush=True)
    return found == count


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
    parser.add_argument("--candidates", type=int, default=100, help="that are faulty, as many as are sound")
    parser.add_argument("--limit", type=float, default=12.0, help="seconds after which a candidate hangs")
    parser.add_argument("--inferences", type=int, default=100_000)
    given = parser.parse_args()
    print(machine())
    kept = [candidates(given.candidates, given.limit), executor(given.inferences)]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
