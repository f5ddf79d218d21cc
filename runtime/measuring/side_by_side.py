"""How much devices slow each other down: small models, or the placed one, on two devices at once and on each alone.

Legend: D devices.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.runtime.platforms.inference import device_calls, infer_checked, infer_unchecked

LEAST_ROUNDS, MOST_ROUNDS = 4, 8
LEAST_STRETCH_S = 0.04
"""Inferences alone, or side by side, go on for at least this long: devices that share a core take turns of a few ms."""

CHANNELS, SIDE, CONVOLUTIONS = 64, 28, 4
"""Of the probe that computes: 200 KB that stay in the cache, 58 million operations for each convolution."""

STREAMED = 1 << 23
"""Elements that the probe of the memory reads and writes: 32 MiB each, more than a cache keeps."""


def probe_model(kind: str) -> ov.Model:
    """The small model of a probe: "compute" is bound by what a core computes, "memory" by what memory delivers."""
    if kind == "memory":
        given = opset13.parameter([STREAMED], np.float32, name="x")
        return ov.Model([opset13.result(opset13.relu(given))], [given], kind)
    given = opset13.parameter([1, CHANNELS, SIDE, SIDE], np.float32, name="x")
    weight = opset13.constant(np.full((CHANNELS, CHANNELS, 3, 3), 1e-3, dtype=np.float32))
    node = given
    for _ in range(CONVOLUTIONS):
        node = opset13.convolution(node, weight, [1, 1], [1, 1], [1, 1], [1, 1])
    return ov.Model([opset13.result(node)], [given], kind)


def times_beside(requests: Sequence[Any], for_s: float) -> list[list[list[tuple[float, float]]]]:
    """[D, D] for each device and another one, by round: seconds of its inference alone, and beside the other's.

    Each pair gets ``for_s`` seconds, but at least LEAST_ROUNDS rounds, of both devices alone and then side by side.
    """
    found: list[list[list[tuple[float, float]]]] = [[[] for _ in requests] for _ in requests]
    with device_calls():
        for request in requests:
            infer_checked(request)
        for a, b in itertools.combinations(range(len(requests)), 2):
            pair, end_s = (requests[a], requests[b]), time.perf_counter() + for_s
            while len(found[a][b]) < MOST_ROUNDS:
                if len(found[a][b]) >= LEAST_ROUNDS and time.perf_counter() >= end_s:
                    break
                alone_s = [stretch([request])[0] for request in pair]
                both_s = stretch(pair)
                found[a][b].append((alone_s[0], both_s[0]))
                found[b][a].append((alone_s[1], both_s[1]))
    return found


def stretch(requests: Sequence[Any]) -> list[float]:
    """Mean seconds of the inferences of each request while all of them run, one thread each.

    All go on until each has run for LEAST_STRETCH_S, once at least; what outlasts another one does not count.
    """
    ends_s: list[list[float]] = [[] for _ in requests]
    failures: list[BaseException] = []
    ready = threading.Barrier(len(requests))
    begin_s = time.perf_counter()

    def is_done(mine: Sequence[float]) -> bool:
        return bool(mine) and mine[-1] - begin_s >= LEAST_STRETCH_S

    def run(i: int) -> None:
        nonlocal begin_s
        try:
            if ready.wait() == 0:
                begin_s = time.perf_counter()
            while not failures and not all(is_done(mine) for mine in ends_s):
                infer_unchecked(requests[i])
                ends_s[i].append(time.perf_counter())
        except BaseException as failure:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    last_s = min(mine[-1] for mine in ends_s)
    counted = [[end_s for end_s in mine if end_s <= last_s] or mine[:1] for mine in ends_s]
    return [(mine[-1] - begin_s) / len(mine) for mine in counted]
