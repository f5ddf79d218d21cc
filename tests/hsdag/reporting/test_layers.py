"""Layers of large graphs: names say which ops belong together, and every op is in the list once."""

from __future__ import annotations

import re
from html import unescape

import pytest

from hsdag.reporting.graph import PlacedGraph
from hsdag.reporting.page import MOST, layers_by_name, layers_html
from tests.hsdag.reporting.examples import EVIL, NAMES, RUN


def test_a_layer_is_the_longest_beginning_of_names_that_leaves_few_layers() -> None:
    names = [
        f"net.block.{k}.{part}/MatMul_{i}" for k in range(30) for part in ("attention", "mlp", "norm") for i in "ab"
    ]
    found = layers_by_name([*names, "Add_7"])
    assert found[:6] == ["net/block/0"] * 6
    assert (len(set(found)), found[-1]) == (31, "other ops")
    assert layers_by_name(names[:36])[0] == "net/block/0/attention"  # of six blocks all parts are few enough
    rotary = ["rotary/cos/input/Sin"] + [f"rotary/sin/{k}/Sin" for k in range(9)]
    mixed = layers_by_name([*(f"net/block/{k % 30}/MatMul_{k}" for k in range(800)), *rotary, "alone/Add"])
    assert mixed[800:] == ["rotary"] + ["rotary/sin"] * 9 + ["other ops"]


def test_ops_whose_names_tell_nothing_are_in_runs_of_their_order() -> None:
    found = layers_by_name([f"Add_{k}" for k in range(2 * MOST + 1)])
    assert found[:4] == ["ops 1 to 3"] * 3 + ["ops 4 to 6"]
    assert found[-1] == f"ops {2 * MOST} to {2 * MOST + 1}"


def test_every_op_that_runs_on_data_is_listed_once_with_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = PlacedGraph.of(RUN)
    assert layers_html(placed) == ""
    monkeypatch.setattr("hsdag.reporting.page.LARGE", 2)
    html = layers_html(placed)
    listed = re.findall(r"<td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", html)
    expected = [(NAMES[v], placed.graph.op_types[v], placed.name_of(int(placed.device[v]))) for v in range(len(NAMES))]
    assert sorted(tuple(map(unescape, row)) for row in listed) == sorted(expected)
    assert EVIL not in html
