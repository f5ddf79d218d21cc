"""Placing through the Python API: what the answer guarantees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hsdag
import hsdag.ir
from hsdag.ir.device import parse_devices
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.coarsen import placement_units
from hsdag.placing.place import run_place
from hsdag.runtime.measuring.latency import Protocol
from hsdag.search.options import PlaceOptions
from tests.placements import by_hand

QUICK = Protocol(min_rounds=4, max_rounds=6, turn_s=0.02)


def test_a_module_that_does_not_convert_is_a_users_error() -> None:
    with pytest.raises(hsdag.HsdagError, match="cannot convert this"):
        hsdag.place(object(), "CPU")


@pytest.mark.slow
def test_the_placement_that_serves_takes_part_and_stays_where_nothing_is_faster(
    tiny_resnet: Path, tmp_path: Path
) -> None:
    specs = "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]"
    graph = read_graph(tiny_resnet)
    units = placement_units(graph).partition.labels
    device = np.where(units < units.max() // 2, "A", "B").tolist()
    start = by_hand(graph, parse_devices(specs), device, seed=7)
    start.save(tmp_path / "start.json")
    found = run_place(
        tiny_resnet,
        PlaceOptions(devices=specs, reward="measured", max_evaluations=4, protocol=QUICK, start=start),
    )
    row = next(row for row in found.rows if row.name == "start")
    assert row.ops == {"A": device.count("A"), "B": device.count("B")}
    assert " to start with" in found.sentence
    if row.is_answer:
        assert (found.placement.affinity, found.placement.method) == (start.affinity, "by hand")
    with pytest.raises(OptionError, match="uses device 'B' as its file describes it, which is not searched"):
        hsdag.place(tiny_resnet, "A=CPU[INFERENCE_NUM_THREADS=1],C=CPU", start=tmp_path / "start.json")
