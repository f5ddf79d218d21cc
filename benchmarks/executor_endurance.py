"""Whether 10,000 inferences through the work-conserving executor take more memory, or leave anything behind.

A chain of eight ops on results of 100 KB, each on the other of two CPU devices of one thread, with two requests in
flight. Memory is that of the process. After a warm-up of a tenth of the inferences it is read ten times; it may not
grow by more than 8 MB until the end, where losing one result of an inference would make 1 GB. Then requests and models
are made and dropped. At the end no thread of the executor may be left. Exit status 1 when one of these fails.

Usage: python benchmarks/executor_endurance.py [--inferences 10000]
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time

import numpy as np
import openvino as ov
import psutil
from machine import machine
from openvino import opset13

from hsdag.ir.build import graph_of
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.openvino_backend import CutOptions, WorkConservingModel, compile_on

MOST_GROWTH_MB = 8.0
SIZE = 25_000


def chain() -> WorkConservingModel:
    """Compiled; ops alternate between the devices."""
    x = opset13.parameter([1, SIZE], np.float32, name="x")
    node = x
    for _ in range(4):
        node = opset13.tanh(opset13.relu(node))
    model = ov.Model([opset13.result(node)], [x], "chain")
    graph = graph_of(model)
    specs = [DeviceSpec.parse(f"CPU_{d}=CPU[INFERENCE_NUM_THREADS=1]") for d in range(2)]
    options = CutOptions(copies=False, merge=False)
    names = [specs[k % 2].openvino_name for k in graph.position]
    return compile_on(ov.Core(), model, graph, specs, names, options=options)


def used_mb() -> float:
    """Resident memory of the process."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def infer(compiled: WorkConservingModel, inferences: int) -> None:
    """On two requests in flight, made anew."""
    x = np.ones((1, SIZE), dtype=np.float32)
    requests = [compiled.create_infer_request() for _ in range(2)]
    for _ in range(inferences // 2):
        for request in requests:
            request.start_async(x)
        for request in requests:
            request.wait()
        if not np.isfinite(requests[0].results[0]).all():
            sys.exit("an inference gave no numbers")


def own_threads() -> list[str]:
    """Names of the executor's threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hsdag-")]


def growth_mb(compiled: WorkConservingModel, inferences: int) -> float:
    """Print memory ten times; how far it rose."""
    infer(compiled, inferences // 10)
    first_mb = used_mb()
    print(f"after {inferences // 10:6d} inferences to warm up: {first_mb:7.1f} MB")
    now_mb = first_mb
    for k in range(1, 11):
        begin = time.perf_counter()
        infer(compiled, inferences // 10)
        each_us = 1e6 * (time.perf_counter() - begin) / (inferences // 10)
        now_mb = used_mb()
        print(f"after {k * inferences // 10:6d} more: {now_mb:7.1f} MB, {each_us:.0f} us each")
    return now_mb - first_mb


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inferences", type=int, default=10_000)
    options = parser.parse_args()
    print(machine())
    with chain() as compiled:
        grown_mb = growth_mb(compiled, options.inferences)
        print(f"growth {grown_mb:.1f} MB (bar {MOST_GROWTH_MB:.0f} MB)")
        before_mb = used_mb()
        for _ in range(100):
            infer(compiled, 2)
        print(f"200 requests made and dropped: {used_mb() - before_mb:.1f} MB")
    for _ in range(10):
        infer(chain(), 2)  # not closed
    patience_s = time.monotonic() + 10
    while own_threads() and time.monotonic() < patience_s:
        gc.collect()
        time.sleep(0.01)
    print(f"threads left: {own_threads() or 'none'}")
    return 0 if grown_mb <= MOST_GROWTH_MB and not own_threads() else 1


if __name__ == "__main__":
    sys.exit(main())
