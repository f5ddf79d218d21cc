"""Random platforms: machines of many kinds, to train methods on and to try them out. Legend: D devices."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.platforms.platform import OP_CLASSES, OpClass, Platform, PlatformDevice

MIN_DEVICES, MAX_DEVICES = 2, 8
SPREAD = 8.0
"""How many times as slow as another one a device or a link may be, where they are unlike."""

PEAK_FLOPS_PER_S, BYTES_PER_FLOP = (1e12, 2e13), (0.03, 0.15)
"""Range of the fastest device's peak, and of its memory bandwidth over its peak: a P100 has 1.06e13 and 0.07."""

LINK_SHARE, LINK_LATENCY_S, OP_OVERHEAD_S = (1 / 32, 1 / 2), (1e-6, 3e-5), (1e-6, 1e-5)
"""Ranges of a link's bandwidth over the memory's, of a link's latency, and of what an op takes beside its roofline."""

BETWEEN_GROUPS = (2.0, 8.0)
"""Range of how many times as slow links are between two groups of devices than inside."""

AMPLE_BYTES = 1e15
"""Memory of a drawn device, more than any model takes: limits follow from what is to be placed."""

_EFFICIENCY = dict.fromkeys(OP_CLASSES, 0.5) | {OpClass.CONVOLUTION: 0.6, OpClass.PRODUCT: 0.7}


def draw_platform(rng: np.random.Generator) -> Platform:
    """A machine of 2 to 8 devices, all alike or up to SPREAD times apart.

    Arithmetic and memory of a device that is unlike the others are slower by factors of their own. Links are all alike,
    or alike in two groups of devices with slower links between, or unlike; they are the same in both directions.
    Efficiencies are those that platform p100x4 assumes.
    """
    d = int(rng.integers(MIN_DEVICES, MAX_DEVICES + 1))
    peak, overhead_s = _log_uniform(rng, PEAK_FLOPS_PER_S), _log_uniform(rng, OP_OVERHEAD_S)
    memory_bandwidth = peak * _log_uniform(rng, BYTES_PER_FLOP)
    slower = np.exp(rng.uniform(0.0, np.log(SPREAD), (d, 2))) if rng.integers(2) else np.ones((d, 2))
    devices = tuple(
        PlatformDevice(
            name=f"d{i}",
            kind="gpu",
            peak_flops_per_s={"f32": peak / arithmetic},
            memory_bandwidth_bytes_per_s=memory_bandwidth / memory,
            memory_bytes=AMPLE_BYTES,
            launch_s=1e-5,
            op_overhead_s=overhead_s,
            memory_efficiency=0.75,
            efficiency=_EFFICIENCY,
        )
        for i, (arithmetic, memory) in enumerate(slower.tolist())
    )
    bandwidth = memory_bandwidth * _log_uniform(rng, LINK_SHARE) / _slower_links(rng, d)
    latency_s = np.full((d, d), _log_uniform(rng, LINK_LATENCY_S))
    np.fill_diagonal(bandwidth, np.inf)
    np.fill_diagonal(latency_s, 0.0)
    return Platform(
        name="drawn",
        description=f"{d} devices drawn at random.",
        devices=devices,
        link_latency_s=latency_s,
        link_bandwidth_bytes_per_s=bandwidth,
    )


def _slower_links(rng: np.random.Generator, d: int) -> FloatArray:
    """[D, D] how many times as slow as the fastest possible each link is."""
    kind = str(rng.choice(("alike", "groups", "unlike")))
    if kind == "groups":
        in_first = np.arange(d) < rng.integers(1, d)
        return np.where(in_first[:, None] == in_first, 1.0, _log_uniform(rng, BETWEEN_GROUPS))
    one_way = np.triu(np.exp(rng.uniform(0.0, np.log(SPREAD), (d, d))) if kind == "unlike" else np.ones((d, d)), 1)
    return np.asarray(one_way + one_way.T + np.eye(d))


def _log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(bounds))))
