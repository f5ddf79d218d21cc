"""Constraints that a model's state puts on a placement: which ops must stay together.

A variable lives where its ReadValue, its Assign and the attention that reads it run; HETERO and plugins lose it, or
their fusion of attention and cache, where these are parted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, fact_of_graph

SHAPE_OF_TYPES = frozenset({"ShapeOf"})
STATE_TYPES = frozenset({"ReadValue", "Assign"})
DRAWING_TYPES = frozenset({"RandomUniform", "Multinomial"})
"""Op types that draw random numbers."""
ATTENTION_TYPE = "ScaledDotProductAttention"
MOVING_TYPES = frozenset("Gather Concat Unsqueeze Squeeze Broadcast Reshape Convert Transpose Tile Slice".split())
"""Op types between a cache and the attention that reads it: they move numbers and compute none."""


@fact_of_graph
def computed_once(graph: ComputationGraph) -> BoolArray:
    """Return [N] ops whose inputs do not determine their outputs, so that a second device would compute something else.

    They draw random numbers, perhaps in a body, or OpenVINO's opsets do not know them. They are never copied.
    """
    return np.isin(graph.op_types, list(DRAWING_TYPES)) | ~graph.is_function


def reached_from(graph: ComputationGraph, sources: Sequence[int]) -> BoolArray:
    """Return [N] ops that depend on ``sources``, these included, also through variables kept between inferences."""
    reads = {graph.variables[v]: v for v, kind in enumerate(graph.op_types) if kind == "ReadValue"}
    reached = np.zeros(graph.num_ops, dtype=np.bool_)
    pending = list(sources)
    while pending:
        v = pending.pop()
        if not reached[v]:
            reached[v] = True
            pending += graph.successors.of(v).tolist()
            pending += [reads[name] for name in {graph.variables[v]} - {""} if name in reads]
    return reached


def results_by_chance(graph: ComputationGraph) -> list[int]:
    """Return the Results that depend on random numbers."""
    drawing = computed_once(graph) & np.isin(graph.op_types, [*DRAWING_TYPES, "If", "Loop", "TensorIterator"])
    reached = reached_from(graph, np.flatnonzero(drawing).tolist())
    return [v for v in np.flatnonzero(reached).tolist() if graph.op_types[v] == "Result"]


def variable_of(graph: ComputationGraph) -> str | None:
    """Return a variable in which the model keeps state between inferences, None where it has none."""
    return next(filter(None, graph.variables), None)


def tied_by_state(graph: ComputationGraph, floating: BoolArray) -> list[tuple[int, int]]:
    """Return pairs of ops that must share a device: ReadValue, Assign, attention of a variable; a shape and its tensor.

    ``floating`` [N] are ops that are copied where their readers differ. The ops on a path between the two ops of a pair
    have to join them.
    """
    pairs: list[tuple[int, int]] = []
    first: dict[str, int] = {}
    for v, variable in enumerate(graph.variables):
        if variable:
            pairs.append((first.setdefault(variable, v), v))
            stored = int(graph.predecessors.of(v)[0]) if graph.op_types[v] == "Assign" else v
            pairs += [(u, v) for u in _attention_behind(graph, stored, floating)]
            if graph.op_types[v] == "Assign" and not graph.is_dynamic[stored]:
                pairs += [(u, v) for u in _computed_ahead_of(graph, stored, floating)]
        elif graph.op_types[v] in SHAPE_OF_TYPES and not floating[v]:
            pairs.append((int(graph.predecessors.of(v)[0]), v))
    return pairs


def _attention_behind(graph: ComputationGraph, stored: int, floating: BoolArray) -> list[int]:
    """Return the attention that reads a cache, as one op or as products of data, behind ops that move it."""
    attention = []
    met, to_do = {stored}, [stored]
    while to_do:
        for u in graph.successors.of(to_do.pop()).tolist():
            if u in met:
                continue
            met.add(u)
            is_product = graph.op_types[u] == "MatMul" and not floating[graph.predecessors.of(u)].any()
            if graph.op_types[u] == ATTENTION_TYPE or is_product:
                attention.append(u)
            elif graph.op_types[u] in MOVING_TYPES and not floating[u]:
                to_do.append(u)
    return attention


def _computed_ahead_of(graph: ComputationGraph, stored: int, floating: BoolArray) -> list[int]:
    """Return the ops that compute what is stored, before ops that move it.

    The CPU plugin (2026.4.1) concatenates a cache of fixed size and new values in place. Where the new values are an
    input of the submodel, as when a sliding window is cut there, it leaves out the copy and reads memory that nobody
    has written.
    """
    computing = []
    met, to_do = {stored}, [stored]
    while to_do:
        v = to_do.pop()
        if graph.op_types[v] not in MOVING_TYPES:
            computing.append(v)
            continue
        new = [u for u in graph.predecessors.of(v).tolist() if u not in met and not floating[u]]
        met.update(new)
        to_do += new
    return computing
