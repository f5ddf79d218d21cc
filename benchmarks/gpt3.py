"""DiviML's case study (§VI): GPT-3 in shape, and servers of which only several hold it."""

from __future__ import annotations

import numpy as np

from hsdag.models.workload import Workload, WorkloadBuilder
from hsdag.runtime.platforms.platform import Platform

LAYERS, WIDTH, HEADS, VOCABULARY, POSITIONS = 96, 12_288, 96, 50_257, 2048
"""The largest model of Brown et al. 2020 (Table 2.1), in f16."""
TOKENS = 20
"""What Table V calls an input."""
TWINS = 2
"""GPUs of each kind in a server: the symmetry factor of 4 per server (§VI) is two pairs."""
NETWORK_LATENCY_S, NETWORK_BANDWIDTH_BYTES_PER_S = 3e-5, 12.5e9
"""Between servers: 100 Gbit/s Ethernet; assumed, for the paper's text does not name its network."""


def gpt3(layers: int = LAYERS) -> Workload:
    """One pass without a cache: 14 ops a layer, embedding, last norm and logits, which hold a copy of the embedding."""
    stack, t, d = WorkloadBuilder("gpt3", "f16"), TOKENS, WIDTH

    def norm(name: str, x: int) -> int:
        return stack.add(name, "MVN", [x], (t, d), num_weights=2 * d)

    def product(name: str, source: int, rows: int, columns: int) -> int:
        return stack.add(name, "MatMul", [source], (t, columns), 2.0 * t * rows * columns, (rows + 1) * columns)

    x = stack.add("embedding", "Gather", [], (t, d), num_weights=(VOCABULARY + POSITIONS) * d)
    for at in (f"layer{layer}" for layer in range(layers)):
        normed = norm(f"{at}.norm1", x)
        query, key, value = (product(f"{at}.{part}", normed, d, d) for part in ("query", "key", "value"))
        scores = stack.add(f"{at}.scores", "MatMul", [query, key], (HEADS, t, t), 2.0 * t * t * d)
        weights = stack.add(f"{at}.softmax", "Softmax", [scores], (HEADS, t, t))
        mixed = stack.add(f"{at}.mix", "MatMul", [weights, value], (t, d), 2.0 * t * t * d)
        x = stack.add(f"{at}.add1", "Add", [x, product(f"{at}.project", mixed, d, d)], (t, d))
        up = product(f"{at}.up", norm(f"{at}.norm2", x), d, 4 * d)
        down = product(f"{at}.down", stack.add(f"{at}.gelu", "Gelu", [up], (t, 4 * d)), 4 * d, d)
        x = stack.add(f"{at}.add2", "Add", [x, down], (t, d))
    stack.add("logits", "MatMul", [norm("norm", x)], (1, VOCABULARY), 2.0 * d * VOCABULARY, d * VOCABULARY)
    return stack.build()


def cluster(platform: Platform, servers: int) -> Platform:
    """So many servers over a network, each with the platform's CPU and every GPU of it twice (Fig. 8).

    Twins are linked as the device is with its slowest neighbour.
    """
    kinds = [d for d, device in enumerate(platform.devices) for _ in range(TWINS if device.kind == "gpu" else 1)]
    kind, home = np.tile(kinds, servers), np.repeat(np.arange(servers), len(kinds))
    latency_s, bandwidth = platform.link_latency_s.copy(), platform.link_bandwidth_bytes_per_s.copy()
    np.fill_diagonal(latency_s, 0.0)
    np.fill_diagonal(bandwidth, np.inf)
    np.fill_diagonal(latency_s, latency_s.max(axis=1))
    np.fill_diagonal(bandwidth, bandwidth.min(axis=1))
    is_near, pairs = home[:, None] == home, np.ix_(kind, kind)
    return Platform(
        name=f"{servers}x-{platform.name}",
        devices=tuple(
            platform.devices[d].model_copy(update={"name": f"s{s}.{platform.devices[d].name}.{i}"})
            for i, (d, s) in enumerate(zip(kind, home, strict=True))
        ),
        link_latency_s=np.where(is_near, latency_s[pairs], NETWORK_LATENCY_S),
        link_bandwidth_bytes_per_s=np.where(is_near, bandwidth[pairs], NETWORK_BANDWIDTH_BYTES_PER_S),
    )
