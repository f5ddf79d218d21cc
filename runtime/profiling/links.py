"""Links: small models cut in two, measured for every ordered pair of devices, and what a crossing takes by them.

Legend: D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import nnls

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph import FloatArray
from hsdag.runtime.measuring.messages import Probed

PROBES = ((1, 1 << 12), (1, 1 << 18), (1, 1 << 21), (4, 1 << 12), (4, 1 << 19))
"""Tensors that cross, and bytes of each: few and many tell a launch from a tensor's latency, sizes the bandwidth."""

PROBE_LIMIT_S = 60.0
"""How long a probe may take before the worker counts as hanging."""

MODEL_ERROR, FLOOR_S = 0.05, 1e-6
"""What a launch, a latency and a bandwidth miss of a probe's figure, and the least error of any."""

WAYS = ("ordinary", "shared")
"""How the work-conserving executor hands a tensor on: in the tensor of the request that wrote it, which GPUs copy, or
in memory that spares copies, as ``SharedMemory`` makes it."""

HANDED = ((1, 1 << 12), (1, 1 << 21), (4, 1 << 12))
"""Probes of these: three tell a launch, a latency and a bandwidth apart."""


def measure_links(
    probe: Callable[..., Probed | None], devices: Sequence[DeviceSpec], kind: str
) -> dict[str, list[Any]]:
    """Launches, latencies and bandwidths under HETERO; where a device does not run the probe, means of the others'.

    ``probe(names, kind, tensors, size_bytes)`` is a ``Probe``'s answer, None where it does not run.
    """
    d, names = len(devices), [spec.openvino_name for spec in devices]
    alone = [[probe((name,), kind, *size) for size in PROBES] for name in names]
    launch, latency, inverse = (np.full((d, d), np.nan) for _ in range(3))
    for a, b in itertools.permutations(range(d), 2):
        rest = [probe((names[a], names[b]), kind, *size) for size in PROBES]
        fitted = fit_link(PROBES, alone[a], alone[b], rest)
        if fitted is not None:
            launch[a, b], latency[a, b], inverse[a, b] = fitted
    for table in (latency, inverse):
        _fill(table)
    launch_s = np.array([_mean(launch[:, b], launch) for b in range(d)])
    inverse = np.maximum(inverse, 1e-12)
    return {
        "launch_s": launch_s.tolist(),
        "latency_s": latency.tolist(),
        "bandwidth_bytes_per_s": (1.0 / inverse).tolist(),
    }


def measure_hand_overs(probe: Callable[..., Probed | None], devices: Sequence[DeviceSpec]) -> dict[str, list[Any]]:
    """By way ``[launch_s, latency_s, s_per_byte]`` [3, D, D] where a GPU takes part, with itself too; NaN elsewhere.

    ``probe(names, kind, tensors, size_bytes, way)`` is as for ``measure_links``; a way that a pair lacks stays NaN.
    Probes are elementwise: what products take varies by more than a copy takes.
    """
    d, names = len(devices), [spec.openvino_name for spec in devices]
    alone = [[probe((name,), "elementwise", *size) for size in HANDED] for name in names]
    handed = {way: np.full((3, d, d), np.nan) for way in WAYS}
    for a, b in itertools.product(range(d), repeat=2):
        for way in WAYS if has_gpu((devices[a], devices[b])) else ():
            cut = [probe((names[a], names[b]), "elementwise", *size, way) for size in HANDED]
            handed[way][:, a, b] = fit_link(HANDED, alone[a], alone[b], cut) or np.nan
    return {way: table.tolist() for way, table in handed.items()}


def has_gpu(devices: Sequence[DeviceSpec]) -> bool:
    """Whether one of the devices is a GPU of OpenVINO's."""
    return any(spec.plugin.startswith("GPU") for spec in devices)


def fit_link(
    sizes: Sequence[tuple[int, int]],
    sender: Sequence[Probed | None],
    receiver: Sequence[Probed | None],
    both: Sequence[Probed | None],
) -> tuple[float, float, float] | None:
    """Launch, latency per tensor and seconds per byte, none negative, from probes of several sizes.

    What a probe takes cut in two, less the mean of what it takes whole on either device, is a launch, and latency and
    bytes for each tensor. Least squares, each probe weighed by its own standard error and by what the model leaves
    out, MODEL_ERROR of its figure and FLOOR_S. None where fewer than three sizes ran.
    """
    rows, extra_s, error_s = [], [], []
    for (tensors, _), a, b, cut in zip(sizes, sender, receiver, both, strict=True):
        if a is not None and b is not None and cut is not None:
            extra = cut.rest_s - 0.5 * (a.rest_s + b.rest_s)
            rows.append([1.0, tensors, tensors * cut.tensor_bytes])
            extra_s.append(extra)
            errors_s = (cut.error_s, 0.5 * a.error_s, 0.5 * b.error_s, MODEL_ERROR * extra, FLOOR_S)
            error_s.append(float(np.linalg.norm(errors_s)))
    if len(rows) < 3:
        return None
    scale = np.array([1e-6, 1e-6, 1e-12])
    weights = 1.0 / np.array(error_s)
    solution, _ = nnls(np.array(rows) * scale * weights[:, None], np.array(extra_s) * weights)
    launch_s, latency_s, per_byte_s = (solution * scale).tolist()
    return launch_s, latency_s, per_byte_s


def _fill(table: FloatArray) -> None:
    """Give the diagonal, and pairs without figures, means of those there are: of their devices', else of all."""
    known = table.copy()
    for a, b in itertools.product(range(len(table)), repeat=2):
        if np.isnan(known[a, b]):
            table[a, b] = _mean(np.concatenate([known[a], known[:, b]]), known)


def _mean(values: FloatArray, others: FloatArray) -> float:
    for candidates in (values, others):
        if not np.isnan(candidates).all():
            return float(np.nanmean(candidates))
    return 0.0
