"""Explanations of placements that divide ops, or copy the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hsdag
from hsdag.ir.graph.build import read_graph
from hsdag.ir.placement.placement import CopyRecord, Placement
from hsdag.placing.by_hand import divide

DEVICES = ",".join(f"{name}=CPU[INFERENCE_NUM_THREADS=1]" for name in "AB")


@pytest.fixture(scope="module")
def sharded(tiny_bert: Path) -> Placement:
    return divide(tiny_bert, DEVICES, None, "3,1", [], {})[1]


def test_regions_are_told_with_their_shares_and_what_they_take_whole_and_divided(
    tiny_bert: Path, sharded: Placement
) -> None:
    found = hsdag.explain(sharded, model=tiny_bert)
    assert len(found.regions) == len(sharded.shards or ())
    assert sum(each.num_ops for each in found.regions) == sum(len(each.ops) for each in sharded.shards or ())
    graph = read_graph(tiny_bert)
    assert found.ops["A"] == graph.num_ops  # by hand all that is whole is on the first device
    assert 0 < found.ops["B"] < graph.num_ops
    for each in found.regions:
        assert each.whole_s is not None
        assert each.divided_s is not None
        least = 1.0 if each.scheme == "replicated" else min(each.shares.values())  # of what it takes whole
        assert each.divided_s >= least * each.whole_s
        if each.scheme == "hidden":
            assert each.shares == {"A": 0.75, "B": 0.25}
    taken = [each.whole_s or 0.0 for each in found.regions]
    assert taken == sorted(taken, reverse=True)
    assert f"ops in {len(taken)} regions are divided." in found.sentences[1]
    assert f"{1e3 * np.sum(taken):.4g} ms on the quickest device" in found.sentences[2]
    (title, _, rows), *_ = found.tables(2)
    assert title.startswith(f"the longest of {len(taken)} regions that devices divide")
    assert any("A:75% B:25%" in row for row in rows)


def test_copies_are_told_with_their_requests(tiny_bert: Path, sharded: Placement) -> None:
    copies = (CopyRecord(device="A", requests=2), CopyRecord(device="B", requests=3))
    changes: dict[str, object] = {"shards": None, "affinity": {}, "copies": copies, "objective": "throughput"}
    found = hsdag.explain(sharded.model_copy(update=changes), model=tiny_bert)
    assert found.copies == {"A": 2, "B": 3}
    assert set(found.ops.values()) == {read_graph(tiny_bert).num_ops}
    assert "A with 2 requests and B with 3 requests" in found.sentences[1]
