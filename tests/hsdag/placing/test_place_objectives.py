"""Placing a model for memory, and for weighted sums: what is asked for is what gets less, and is said in its words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hsdag.ir.graph.build import read_graph
from hsdag.placing.place import run_place
from hsdag.runtime.measuring.latency import Protocol
from hsdag.runtime.objectives import find_objective
from hsdag.search.options import PlaceOptions

ROUNDS = Protocol(6, 8, 0.02)
OPTIONS = PlaceOptions(
    partition_cpu=2,
    method="sa",
    budget_s=60.0,
    max_evaluations=6,
    precision="f32",  # in half precision outputs of splits may differ by too much to be the answer
    protocol=ROUNDS,
)


@pytest.mark.slow
def test_a_placement_for_memory_shares_the_weights_out_and_says_so_in_its_words(tiny_bert: Path) -> None:
    for_memory = run_place(tiny_bert, replace(OPTIONS, objective=find_objective("memory")))
    weights = float(read_graph(tiny_bert).weight_bytes.sum())
    alone = next(row.median for row in for_memory.rows if row.name == "CPU_0")
    answer = next(row.median for row in for_memory.rows if row.is_answer)
    assert alone > weights / 2
    assert answer < 0.9 * alone
    assert len(for_memory.placement.used_devices) == 2
    assert "times the memory of the placement" in for_memory.sentence
    assert "peaks of memory are simulated" in for_memory.sentence
    assert "faster" not in for_memory.sentence
    assert (for_memory.objective, for_memory.unit) == ("memory", "B")
    assert (for_memory.placement.latency, for_memory.placement.baselines) == (None, {})
