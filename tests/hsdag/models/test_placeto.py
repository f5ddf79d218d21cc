"""Workloads in the manner of Placeto's datasets: counts, costs and dependences follow from their definition."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.models import find_workload
from hsdag.models.placeto import EnasSizes, NmtSizes, PtbSizes, enas, nmt, ptb
from tests.networks import as_networkx

SEEDS = st.integers(0, 10_000)
DRAWN = ("random-wired", "chain", "transformer", "enas", "nmt", "ptb")


def reads(graph: ComputationGraph, name: str) -> set[str]:
    return {graph.op_names[u] for u in graph.predecessors.of(graph.index_of[name])}


@pytest.mark.parametrize("name", DRAWN)
def test_one_seed_gives_one_workload_and_another_another(name: str) -> None:
    first, again, other = (find_workload(name).build(4, {"seed": seed}).graph for seed in (3, 3, 4))
    assert first.op_names == again.op_names
    assert np.array_equal(first.edge_dst, again.edge_dst)
    assert np.array_equal(first.flops, again.flops)
    assert not np.array_equal(first.flops, other.flops)


@given(SEEDS)
def test_every_node_of_an_enas_cell_reads_at_most_two_earlier_ones_and_none_is_left_out(seed: int) -> None:
    graph = enas(EnasSizes.drawn(seed)).graph
    assert all(len(graph.predecessors.of(v)) <= 2 for v in range(graph.num_ops) if graph.op_types[v] not in ("Concat",))
    assert len(nx.ancestors(as_networkx(graph), graph.num_ops - 1)) == graph.num_ops - 1


def test_cells_that_halve_the_resolution_double_the_filters() -> None:
    graph = enas(EnasSizes(cells=6, filters=8, batch=2)).graph
    shapes = [graph.shape_of(graph.index_of[f"cell{c}.in0"]) for c in range(6)]
    sizes = [(8, 32), (8, 32), (16, 16), (16, 16), (32, 8), (32, 8)]
    assert shapes == [(2, filters, rows, rows) for filters, rows in sizes]


def test_ops_of_a_cell_have_the_operations_and_weights_of_their_kind() -> None:
    graph = enas(EnasSizes(cells=6, filters=8, batch=2)).graph
    for v, name in enumerate(graph.op_names):
        elements, filters = np.prod(graph.shape_of(v)), graph.shape_of(v)[1]
        cost = float(graph.flops[v] / elements), int(graph.weight_bytes[v])
        separable = {(2.0 * (n + filters), 4 * (n + filters) * filters) for n in (9, 25)}
        costs = {"Convolution": separable, "AvgPool": {(9.0, 0)}, "MaxPool": {(9.0, 0)}}
        if ".n" in name and graph.op_types[v] != "Add":
            assert cost in costs[graph.op_types[v]]
        elif ".in" in name:
            (source,) = graph.predecessors.of(v)
            channels = graph.shape_of(source)[1]
            assert cost == (2 * channels, 4 * channels * filters)
    assert (graph.flops[0], graph.weight_bytes[0]) == (2 * 27 * 2 * 8 * 32 * 32, 4 * 27 * 8)
    channels = graph.shape_of(graph.num_ops - 2)[1]
    assert (graph.flops[-1], graph.weight_bytes[-1]) == (2 * channels * (8 * 8 + 2 * 10), 4 * 10 * channels)


@pytest.mark.parametrize(("layers", "feeds"), [(1, True), (3, False)])
def test_a_translation_model_has_as_many_ops_as_the_formula_says(layers: int, feeds: bool) -> None:
    sizes = NmtSizes(5, 7, layers, feeds_attention=feeds)
    assert nmt(sizes).graph.num_ops == (1 + 2 * layers) * 5 + (6 + 2 * layers) * 7 + 2 * layers + 5


def test_a_state_follows_from_the_step_before_and_the_layer_below() -> None:
    graph = nmt(NmtSizes(3, 3, 2)).graph
    assert reads(graph, "encoder.t1.l1.gates") == {"encoder.t1.l0.state", "encoder.t0.l1.state", "encoder.l1.weight"}
    assert reads(graph, "decoder.t0.l1.gates") == {"decoder.t0.l0.state", "encoder.t2.l1.state", "decoder.l1.weight"}
    assert reads(graph, "memory") == {f"encoder.t{t}.l1.state" for t in range(3)}


def test_only_attention_that_is_fed_on_makes_a_step_wait_for_the_attention_before_it() -> None:
    for feeds in (True, False):
        graph = nmt(NmtSizes(3, 3, 1, feeds_attention=feeds)).graph
        before = nx.ancestors(as_networkx(graph), graph.index_of["decoder.t1.l0.gates"])
        assert (graph.index_of["decoder.t0.attention"] in before) is feeds


@pytest.mark.parametrize("feeds", [False, True])
def test_an_lstm_step_takes_the_operations_of_its_four_gates(feeds: bool) -> None:
    graph = nmt(NmtSizes(2, 2, 1, width=32, batch=4, feeds_attention=feeds)).graph
    for part, read in (("encoder", 32 + 32), ("decoder", 32 + 32 + 32 * feeds)):
        assert graph.flops[graph.index_of[f"{part}.t1.l0.gates"]] == 2 * 4 * read * (4 * 32)
        assert graph.shape_of(graph.index_of[f"{part}.l0.weight"]) == (read, 4 * 32)
    assert graph.flops[graph.index_of["decoder.t0.scores"]] == 2 * 4 * 32 * 2  # words
    assert graph.flops[graph.index_of["decoder.t0.attention"]] == 2 * 4 * 64 * 32
    assert graph.shape_of(graph.index_of["attention.weight"]) == (64, 32)
    state = graph.index_of["decoder.t0.l0.state"]
    assert (graph.flops[state], graph.shape_of(state)) == (20 * 4 * 32, (4, 64))


@given(SEEDS)
def test_a_language_model_has_as_many_ops_as_the_formula_says_and_shares_its_weights(seed: int) -> None:
    sizes = PtbSizes.drawn(seed)
    graph = ptb(sizes).graph
    assert graph.num_ops == (sizes.nodes + 3) * sizes.steps + sizes.nodes + 2
    assert all(len(graph.successors.of(graph.index_of[f"n{n}.weight"])) == sizes.steps for n in range(sizes.nodes))


@given(SEEDS)
def test_every_step_of_a_language_model_has_the_same_cell_behind_the_last_state(seed: int) -> None:
    sizes = replace(PtbSizes.drawn(seed), steps=3)
    graph = ptb(sizes).graph
    assert reads(graph, "t2.n0") == {"t2.word", "t1.state", "n0.weight"}
    for n in range(1, sizes.nodes):
        (earlier,) = (name for name in reads(graph, f"t1.n{n}") if not name.endswith("weight"))
        assert int(earlier.removeprefix("t1.n")) < n
        assert f"t2.{earlier.split('.')[1]}" in reads(graph, f"t2.n{n}")
    rows, b, w = ([2] + [1] * (sizes.nodes - 1)), sizes.batch, sizes.width
    assert [graph.shape_of(graph.index_of[f"n{n}.weight"]) for n in range(sizes.nodes)] == [(r * w, w) for r in rows]
    taken = [graph.flops[graph.index_of[f"t1.n{n}"]] / (b * w) - 2 * r * w for n, r in enumerate(rows)]
    assert set(taken) <= {0, 1}  # of the activation
    assert graph.flops[graph.index_of["t1.logits"]] == 2 * b * w * sizes.vocabulary
    assert graph.flops[graph.index_of["t1.state"]] == b * w * len(reads(graph, "t1.state"))


@given(SEEDS)
def test_drawn_sizes_stay_within_400_ops_and_placetos_ranges(seed: int) -> None:
    drawn = EnasSizes.drawn(seed), NmtSizes.drawn(seed), PtbSizes.drawn(seed)
    assert 240 <= drawn[0].batch <= 360
    assert 64 <= drawn[1].batch <= 128
    assert 1536 <= drawn[2].batch <= 3072
    assert (drawn[0].filters % 8, drawn[1].width % 128, drawn[2].width % 64) == (0, 0, 0)
    assert 32 <= drawn[0].filters <= 256 <= drawn[1].width <= 1024 >= drawn[2].width >= 128
    assert all(w.graph.num_ops <= 400 for w in (enas(drawn[0]), nmt(drawn[1]), ptb(drawn[2])))
