"""Placing through the Python API: what the answer guarantees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

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
def test_a_search_that_learns_keeps_out_of_the_callers_torch_threads(tiny_resnet: Path) -> None:
    given = {"method": "hsdag", "preset": "paper", "max_evaluations": 6, "reward": "measured"}
    options = PlaceOptions(partition_cpu=2, protocol=QUICK, **given)  # type: ignore[arg-type]
    torch.set_num_threads(2)
    try:
        assert run_place(tiny_resnet, options).tally.tried == 6
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
def test_a_simulated_reward_measures_devices_alone_and_compares_what_it_found(tiny_resnet: Path) -> None:
    """And HETERO's own choice."""
    options = PlaceOptions(
        partition_cpu=2, method="hsdag", reward="simulated", changes={"updates": "20"}, finalists=2, protocol=QUICK
    )
    outcome = run_place(tiny_resnet, options)
    assert outcome.tally.tried <= 4
    assert {"placement 1", "placement 2", "CPU_0", "CPU"} <= {row.name for row in outcome.rows}
    assert all(row.submodels > 1 for row in outcome.rows if row.name.startswith("placement"))


def test_the_papers_preset_measures_every_placement_unless_told_otherwise() -> None:
    assert PlaceOptions(method="hsdag", preset="paper").resolved_reward == "measured"
    assert PlaceOptions(method="hsdag", preset="paper", reward="hybrid").resolved_reward == "hybrid"
    assert PlaceOptions().resolved_reward == "hybrid"


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
