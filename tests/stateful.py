"""Language models that tests split between layers, and the tokens that they generate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import openvino as ov

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.placement import ExecutorName, Placement
from tests.placements import by_hand

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""With these properties a CPU computes the same however a model is cut."""

PROMPT = (3, 14, 15, 92, 65)
CPUS = tuple(DeviceSpec(f"CPU_{d}", "CPU", {**EXACT, "INFERENCE_NUM_THREADS": "1"}) for d in range(2))


@dataclass(frozen=True)
class Generated:
    """Tokens, each the likeliest one, and by how much the closest second was behind."""

    tokens: tuple[int, ...]
    least_lead: float


def generate(request: Any, num_tokens: int = 64, prompt: Sequence[int] = PROMPT) -> Generated:
    """Tokens behind a prompt, which is given at once; then each token by itself, with what the request remembers."""
    request.reset_state()
    ids, tokens, leads, length = np.asarray([prompt]), [], [], 0
    for _ in range(num_tokens):
        count = ids.shape[1]
        positions = np.arange(length, length + count)[None]
        length += count
        inputs = [ids, np.ones((1, length), np.int64), positions, np.zeros(1, np.int32)]
        logits = np.array(next(iter(request.infer(inputs).values()))[0, -1])
        best, second = np.sort(logits)[::-1][:2]
        leads.append(float(best - second))
        tokens.append(int(np.argmax(logits)))
        ids = np.asarray([tokens[-1:]])
    return Generated(tuple(tokens), min(leads))


def unsplit(model: ov.Model, num_tokens: int = 64, prompt: Sequence[int] = PROMPT) -> Generated:
    """What the model generates on the CPU."""
    compiled = ov.Core().compile_model(model.clone(), "CPU", EXACT)
    return generate(compiled.create_infer_request(), num_tokens, prompt)


def split_after(graph: ComputationGraph, op: str) -> list[int]:
    """[N] 0 for the sets of ops that ``op`` depends on and its own, 1 for all others."""
    constraints = colocate(graph)
    labels = constraints.sets.labels.tolist()
    edges = zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), constraints.edge_kept.tolist(), strict=True)
    quotient = nx.DiGraph((labels[s], labels[d]) for s, d, is_kept in edges if is_kept)
    first = nx.ancestors(quotient, labels[graph.index_of[op]]) | {labels[graph.index_of[op]]}
    return [int(label not in first) for label in labels]


def placement_of(
    model: ov.Model,
    devices: Sequence[int],
    specs: Sequence[DeviceSpec] = CPUS,
    executor: ExecutorName = "hetero",
) -> Placement:
    """A placement by the device [N] of each op."""
    graph = graph_of(model)
    return by_hand(graph, specs, [specs[d].name for d in devices], executor=executor)
