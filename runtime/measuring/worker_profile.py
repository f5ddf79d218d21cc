"""The worker's part in a profile: times of ops from performance counters, and the memory that is held.

Legend: N ops of the model.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from hsdag.ir.device import DeviceSpec
from hsdag.ir.prepared import COPY_MARK
from hsdag.runtime.measuring.exercise import Exercise
from hsdag.runtime.platforms.inference import device_calls

COUNTERS = {"PERF_COUNT": True}
_SUBMODEL = re.compile(r"subgraph(\d+): ")


def op_times(
    counted: Exercise, plain: Exercise, compiled: Any, names: Sequence[str], runs: int, for_s: float
) -> dict[str, Any]:
    """Times of a compiled model's primitives, weighted means over the courses that its requests run.

    ``counted`` has performance counters, ``plain`` has none; ``names`` [N] are the model's ops. Both run each course in
    turn up to ``runs`` times, ending early after ``for_s`` seconds in all.
    ``primitives`` are ``[ops, seconds, submodel, type]`` in order of execution: the indices of all ops that
    the primitive computes, none for what the plugin added by itself, and the submodel of HETERO's that it is in.
    ``latency_s`` is that of the plain runs, ``spread`` their interquartile range over it.
    """
    index = {name: v for v, name in enumerate(names)}
    seconds: dict[str, float] = defaultdict(float)
    types: dict[str, str] = {}
    quartiles_s, num_runs = np.zeros(3), runs
    for course in counted.courses:
        taken: dict[str, list[float]] = defaultdict(list)
        plain_s: list[float] = []
        end = time.perf_counter() + for_s / len(counted.courses)
        while len(plain_s) < runs and (len(plain_s) < 3 or time.perf_counter() < end):
            with device_calls():
                plain_s.append(plain.seconds(course))
                counted.seconds(course)
                counters = counted.request.profiling_info
            for info in counters:
                taken[info.node_name].append(info.real_time.total_seconds())
                types[info.node_name] = info.node_type
        for name, times_s in taken.items():
            several = len(times_s) > len(plain_s)
            seconds[name] += course.share * (sum(times_s) / len(plain_s) if several else float(np.median(times_s)))
        quartiles_s += course.share * np.quantile(plain_s, [0.25, 0.5, 0.75])
        num_runs = min(num_runs, len(plain_s))
    originals = _originals(compiled)
    primitives: list[list[Any]] = []
    for name, mean_s in seconds.items():
        found = _SUBMODEL.match(name)
        own = name[found.end() :] if found else name
        ops = [index[o] for o in originals.get(own, (own,)) if o in index]
        if mean_s > 0 or len(ops) > 1:
            primitives.append([ops, mean_s, int(found[1]) if found else 0, types[name]])
    low, median, high = quartiles_s.tolist()
    return {"primitives": primitives, "latency_s": median, "spread": (high - low) / median, "runs": num_runs}


def _originals(compiled: Any) -> dict[str, list[str]]:
    """By primitive, the names of the model's ops that it computes; empty where the plugin does not tell."""
    try:
        primitives = compiled.get_runtime_model().get_ordered_ops()
    except RuntimeError:
        return {}
    found: dict[str, list[str]] = {}
    for primitive in primitives:
        info = primitive.get_rt_info()
        written = info["originalLayersNames"].astype(str) if "originalLayersNames" in info else ""
        found[primitive.get_friendly_name()] = [
            name.strip().partition(COPY_MARK)[0] for name in written.split(",") if name.strip()
        ]
    return found


@dataclass(frozen=True)
class Held:
    """Bytes that this process holds in the machine's memory, and in that of GPUs: None where no device tells."""

    resident_bytes: int
    device_bytes: int | None

    @staticmethod
    def now(core: Any, specs: Sequence[DeviceSpec]) -> Held:
        """By the statistics of the process and of the GPUs among ``specs``, each counted once under all its names."""
        by_device: dict[str, int] = {}
        for spec in specs:
            with suppress(RuntimeError):  # other plugins have no such property
                kinds = core.get_property(spec.openvino_name, "GPU_MEMORY_STATISTICS")
                by_device[spec.plugin] = sum(size for kind, size in kinds.items() if kind != "usm_host")
        return Held(int(psutil.Process().memory_info().rss), sum(by_device.values()) if by_device else None)

    def since(self, before: Held) -> dict[str, Any]:
        """What was added, as fields of ``Opened``; nothing where there is less."""
        device_bytes = None
        if self.device_bytes is not None and before.device_bytes is not None:
            device_bytes = max(self.device_bytes - before.device_bytes, 0)
        return {"resident_bytes": max(self.resident_bytes - before.resident_bytes, 0), "device_bytes": device_bytes}


def device_memory_bytes(core: Any, name: str) -> float | None:
    """Memory of a device; the machine's for those that compute in it, None where it is not known."""
    try:
        return float(core.get_property(name, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    except RuntimeError:
        return float(psutil.virtual_memory().total) if "CPU" in name else None
