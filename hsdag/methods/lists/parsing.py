"""The graph parsing network that was learned on other problems: which ends of an edge belong on one device.

HSDAG's parsing (§2.4) with features of edges in place of products of embeddings, so that it reads any graph. It was
taught by plans of a search: an edge's score is the probability that both ends share a device there. Edges are
contracted by score, while the work of a group leaves it a share of a balanced schedule; the groups are features of the
list schedules that follow. Legend: N ops, E edges in the order of ``Tables.out_op``, D devices, F features, L limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.ir.kernels import bare, inlined
from hsdag.runtime.problem.tables import Levels, Tables, lengths_of, mean_seconds, mean_transfers

EDGE_FEATURES = (
    "transfer",
    "transfer over the time of its producer",
    "transfer over the time of its consumer",
    "time of its producer",
    "time of its consumer",
    "longest way from the beginning, as a share of the longest path",
    "longest way to the end, as a share of the longest path",
    "slack to the longest path, as a share of it",
    "way over the edge to its consumer, longer than over the other inputs",
    "way over the edge to the end, longer than over the other outputs",
    "inputs of its producer",
    "outputs of its producer",
    "inputs of its consumer",
    "outputs of its consumer",
    "share of its consumer's input",
    "what both lose on the device that suits both best",
    "transfers over work, of the graph",
    "work over the longest path, of the graph",
    "devices",
)
"""Times in units of the mean op; these, ratios and counts are logarithms."""
NUM_INPUTS = 3 * len(EDGE_FEATURES)
"""What the network reads of an edge: its features, and their means over the edges at its producer and its consumer."""
LEAST_SCORE = 0.5
"""Edges that score less are not contracted."""
LIMITS = (0.0, 0.1, 0.3, 1.0)
"""What the work of a group may be, as shares of a balanced schedule; the first leaves every op by itself."""
MOST = 10.0


class Layer(NamedTuple):
    """A linear layer: weights [F, H] and bias [H]."""

    weight: FloatArray
    bias: FloatArray


def parsing_layers(weights: Mapping[str, Any]) -> list[Layer]:
    """The layers that a policy file holds as ``parsing.0.weight``, ``parsing.0.bias`` and so on, first to last."""
    names = sorted(name.removesuffix(".weight") for name in weights if name.startswith("parsing.") and "weight" in name)
    none = np.zeros(0)
    return [
        Layer(*(np.asarray(weights.get(f"{name}.{part}", none), np.float64) for part in Layer._fields))
        for name in names
    ]


def layer_weights(layers: list[Layer]) -> dict[str, FloatArray]:
    """The same the other way round."""
    return {
        f"parsing.{i}.{part}": each
        for i, layer in enumerate(layers)
        for part, each in zip(Layer._fields, layer, strict=True)
    }


def edge_inputs(t: Tables, levels: Levels) -> FloatArray:
    """[E, 3 F] what the network reads of every edge."""
    x = edge_features(t, levels)
    source, target = np.repeat(np.arange(len(t.time_s)), np.diff(t.out_first)), t.out_op
    return np.concatenate([x, *(_means(x, end, len(t.time_s))[end] for end in (source, target))], axis=1)


def edge_features(t: Tables, levels: Levels) -> FloatArray:
    """[E, F] of every edge."""
    num, target = len(t.time_s), t.out_op
    source, unit_s = np.repeat(np.arange(num), np.diff(t.out_first)), max(lengths_of(t)[1], np.finfo(float).tiny)
    mean_s, sent_s = mean_seconds(t) / unit_s, mean_transfers(t, t.out_bytes) / unit_s
    up_s, down_s = levels.upward_s / unit_s, levels.downward_s / unit_s
    longest_s = max(float((up_s + down_s).max()), 1e-9)
    there_s, rest_s = (down_s + mean_s)[source] + sent_s, sent_s + up_s[target]
    num_in, num_out = np.diff(t.in_first), np.diff(t.out_first)
    received = np.bincount(target, t.out_bytes, num)
    able_s = np.where(np.isfinite(t.time_s), t.time_s / unit_s, 1e3 * mean_s.max() + 1.0)
    least_s, alone_s = (able_s[source] + able_s[target]).min(axis=1), able_s.min(axis=1)
    columns = [
        np.log1p(sent_s),
        np.log((sent_s + 0.01) / (mean_s[source] + 0.01)),
        np.log((sent_s + 0.01) / (mean_s[target] + 0.01)),
        np.log1p(mean_s[source]),
        np.log1p(mean_s[target]),
        down_s[source] / longest_s,
        up_s[target] / longest_s,
        1.0 - (down_s[source] + mean_s[source] + rest_s) / longest_s,
        np.clip(there_s - _most_of_others(there_s, target, num), -MOST, MOST),
        np.clip(rest_s - _most_of_others(rest_s, source, num), -MOST, MOST),
        np.log1p(num_in[source]),
        np.log1p(num_out[source]),
        np.log1p(num_in[target]),
        np.log1p(num_out[target]),
        t.out_bytes / np.maximum(received[target], 1.0),
        np.log1p(np.maximum(least_s - alone_s[source] - alone_s[target], 0.0)),
        np.full(len(target), np.log1p(sent_s.sum() / max(mean_s.sum(), 1e-9))),
        np.full(len(target), np.log1p(mean_s.sum() / longest_s)),
        np.full(len(target), np.log(t.time_s.shape[1])),
    ]
    return np.stack(columns, axis=1)


def _means(x: FloatArray, end: IntArray, num: int) -> FloatArray:
    """[N, F] means of features [E, F] over the edges that have an op at their ``end`` [E]."""
    total = np.zeros((num, x.shape[1]))
    np.add.at(total, end, x)
    return total / np.maximum(np.bincount(end, minlength=num), 1)[:, None]


def _most_of_others(value: FloatArray, end: IntArray, num: int) -> FloatArray:
    """[E] the largest of ``value`` [E] over the other edges with the same ``end`` [E], 0 where there is none."""
    order = np.lexsort((value, end))
    last = np.cumsum(np.bincount(end, minlength=num)) - 1  # the largest of every op
    first = np.concatenate([[0], last[:-1] + 1])
    most, second = np.zeros(num), np.zeros(num)
    has_one, has_two = last >= first, last > first
    most[has_one], second[has_two] = value[order[last[has_one]]], value[order[last[has_two] - 1]]
    largest = np.zeros(len(value), dtype=np.bool_)
    largest[order[last[has_one]]] = True
    return np.where(largest, second[end], most[end])


def edge_scores(layers: list[Layer], inputs: FloatArray) -> FloatArray:
    """[E] the probabilities that the ends of edges share a device, from what the network reads of them [E, 3 F]."""
    for layer in layers[:-1]:
        inputs = np.maximum(inputs @ layer.weight + layer.bias, 0.0)
    return np.asarray(1.0 / (1.0 + np.exp(-(inputs @ layers[-1].weight + layers[-1].bias)[:, 0])))


def groups_of(t: Tables, score: FloatArray) -> IntArray:
    """[L, N] the group of every op under each of ``LIMITS``, named by one of its ops, from scores [E].

    Edges are contracted by score, largest first, ties by what they carry, then by index.
    """
    source = np.repeat(np.arange(len(t.time_s)), np.diff(t.out_first))
    order = np.lexsort((-t.out_bytes, -score))
    order, length_s = order[score[order] >= LEAST_SCORE], lengths_of(t)[0]
    groups = np.tile(np.arange(len(t.time_s)), (len(LIMITS), 1))
    for limit, group in zip(LIMITS, groups, strict=True):
        work_s, held = mean_seconds(t), t.weight_bytes.copy()
        contract(source[order], t.out_op[order], work_s, limit * length_s, held, float(t.memory_bytes.min()), group)
    return groups


@bare
def contract(
    source: IntArray,
    target: IntArray,
    work_s: FloatArray,
    most_s: float,
    held_bytes: FloatArray,
    most_bytes: float,
    group: IntArray,
) -> None:
    """Join the groups [N] of the ends of edges, one after another, where the work and the weights stay in limits."""
    for e in range(len(source)):
        a, b = _root(group, source[e]), _root(group, target[e])
        if a != b and work_s[a] + work_s[b] <= most_s and held_bytes[a] + held_bytes[b] <= most_bytes:
            group[b] = a
            work_s[a] += work_s[b]
            held_bytes[a] += held_bytes[b]
    for v in range(len(group)):
        group[v] = _root(group, v)


@inlined
def _root(group: IntArray, v: int) -> int:
    """The op that names v's group; the way there gets shorter."""
    while group[v] != v:
        group[v] = group[group[v]]
        v = group[v]
    return v
