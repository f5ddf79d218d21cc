"""The graph parsing network (HSDAG, section 2.4) as coarsener: which ends of edges good plans keep together.

It reads no unit of time, so that graphs and machines of any size are alike to it. ``hsdag.training.parsing`` trains it.
Legend: N ops, E edges, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import lengths_of, levels_of, mean_seconds, mean_transfers, op_features, tables_of

SHIPPED = Path(__file__).parents[1] / "policies" / "parsing.safetensors"
"""The weights that come with a release; their card says how they were trained."""
LOCAL = (0, 1, 2, 5, 6, 7, 8)
"""Of ``OP_FEATURES``, those that do not depend on where in the graph an op is."""
NUM_OP_FEATURES, NUM_EDGE_FEATURES, WIDTH, ROUNDS = len(LOCAL) + 2, 6, 32, 2
LAYERS = ("encoder.input.layers.0", "encoder.rounds.0.out", "encoder.rounds.1.out", "score.layers.0", "score.layers.1")
"""Each has a ``weight`` [out, in] and a ``bias`` [out]."""


def features_of(costs: ScheduleProblem) -> tuple[FloatArray, FloatArray]:
    """[N, F] of ops: local ones, how much longer the longest path of all is, and the number of devices; and [E, F] of
    edges: how long they take, slack to the longest path, to the last input of the consumer and to the producer's most
    urgent reader, and their share of what one receives and the other one sends."""
    tables = tables_of(costs)
    src, dst, num = costs.edge_src, costs.edge_dst, costs.num_ops
    levels = levels_of(tables)
    mean_s, unit_s = mean_seconds(tables), lengths_of(tables)[1]
    up_s, down_s, sent_s = levels.upward_s, levels.downward_s, mean_transfers(tables, costs.edge_bytes)
    longest_s, sends_s, left_s = (up_s + down_s).max(), down_s[src] + mean_s[src], sent_s + up_s[dst]
    of_edge_s = longest_s - sends_s - left_s, down_s[dst] - sends_s - sent_s, up_s[src] - mean_s[src] - left_s
    of_op, *of_edge = (np.log1p(np.maximum(each, 0.0) / unit_s) for each in (longest_s - up_s - down_s, *of_edge_s))
    shares = [sent_s / np.maximum(np.bincount(of, sent_s, num)[of], np.finfo(float).tiny) for of in (dst, src)]
    x = np.column_stack([op_features(tables, levels)[:, LOCAL], of_op, np.full(num, np.log(costs.num_devices))])
    return x, np.column_stack([np.log1p(sent_s / unit_s), *of_edge, *shares])


def probabilities_of(costs: ScheduleProblem, weights: Mapping[str, NDArray[Any]]) -> FloatArray:
    """[E] the probability that both ends of an edge share a device: two graph convolutions (eq. 6) with what they read
    added, rows of unit mean square, and an MLP of the ends' product (eq. 7) and the edge's features."""
    from scipy.sparse import csr_array  # not at the top: it loads slowly

    x, of_edge = features_of(costs)
    first, *rounds, hidden, last = ((weights[f"{name}.weight"].T, weights[f"{name}.bias"]) for name in LAYERS)
    own = np.arange(costs.num_ops)
    src, dst = costs.edge_src, costs.edge_dst
    ends = np.concatenate([own, src, dst]), np.concatenate([own, dst, src])  # both ways, and to the op itself
    scale = np.bincount(ends[0]) ** -0.5
    around = csr_array((scale[ends[0]] * scale[ends[1]], ends), shape=(costs.num_ops, costs.num_ops))
    h = np.maximum(x @ first[0] + first[1], 0.0)
    for weight, bias in rounds:
        h = h + np.maximum((around @ h) @ weight + bias, 0.0)
    h /= np.sqrt(np.square(h).mean(axis=1, keepdims=True) + 1e-6)
    joint = np.maximum(np.concatenate([h[src] * h[dst], of_edge], axis=1) @ hidden[0] + hidden[1], 0.0)
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * (joint @ last[0] + last[1])[:, 0]), dtype=np.float64)  # the sigmoid
