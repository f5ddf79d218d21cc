"""Partition: its laws."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.partition import Partition


@given(labels=st.lists(st.integers(-5, 5), max_size=20))
def test_from_labels_keeps_the_grouping_and_numbers_by_first_member(labels: list[int]) -> None:
    partition = Partition.from_labels(np.asarray(labels, dtype=np.int64))
    assert partition.num_groups == len(set(labels))
    first_seen = list(dict.fromkeys(labels))
    assert [first_seen[g] for g in partition.labels.tolist()] == labels


@given(pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_from_pairs_gives_connected_components(pairs: list[tuple[int, int]]) -> None:
    other = nx.Graph(pairs)
    other.add_nodes_from(range(10))
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    partition = Partition.from_pairs(10, table[:, 0], table[:, 1])
    found = {frozenset(partition.members.of(g).tolist()) for g in range(partition.num_groups)}
    assert found == {frozenset(component) for component in nx.connected_components(other)}


@given(data=st.data())
def test_refine_composes_and_identity_is_neutral(data: st.DataObject) -> None:
    fine = Partition.from_labels(np.asarray(data.draw(st.lists(st.integers(0, 5), min_size=1)), dtype=np.int64))
    size = fine.num_groups
    coarse = Partition.from_labels(
        np.asarray(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), dtype=np.int64)
    )
    composed = coarse.refine(fine)
    assert composed.labels.tolist() == [int(coarse.labels[g]) for g in fine.labels]
    assert Partition.identity(size).refine(fine).labels.tolist() == fine.labels.tolist()


def test_refine_refuses_sizes_that_do_not_match() -> None:
    with pytest.raises(ValueError, match="cannot compose: 2 fine groups, but 3 items"):
        Partition.identity(3).refine(Partition.identity(2))


@pytest.mark.parametrize(("labels", "groups", "complaint"), [([0, 2], 2, "outside"), ([0, 0], 2, "empty")])
def test_labels_that_are_no_partition_are_refused(labels: list[int], groups: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Partition(np.asarray(labels, dtype=np.int64), groups)
