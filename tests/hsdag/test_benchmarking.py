"""What bench measures: devices by name, those that placements describe, and what each candidate costs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import hsdag
from hsdag.benchmarking import Tuning, split_targets
from hsdag.cli.app import run
from hsdag.ir.device import parse_devices
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import read_graph
from tests.placements import by_hand

PARTS = "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1],C=CPU[INFERENCE_NUM_THREADS=2]"


def test_another_device_of_the_same_name_and_a_device_named_twice_are_refused(tiny_resnet: Path) -> None:
    """All of the model is on A, with B and C described but not used."""
    graph = read_graph(tiny_resnet)
    on_a = by_hand(graph, parse_devices(PARTS), ["A"] * graph.num_ops)
    with pytest.raises(OptionError, match="p has another device named 'A'"):
        hsdag.bench(tiny_resnet, {"p": on_a}, ["A=CPU[INFERENCE_NUM_THREADS=2]"], time="0.2s")
    with pytest.raises(OptionError, match="named twice"):
        split_targets(["CPU", "CPU.0"], or_cpu=False)


def test_a_row_says_what_loading_the_candidate_took(tiny_resnet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = hsdag.bench(tiny_resnet, devices=["CPU"], time="0.2s").rows
    assert min(row.compile_s, row.first_s, row.resident_bytes) > 0
    assert row.device_bytes is None  # the CPU's memory is the machine's
    assert run(["bench", str(tiny_resnet), "--device", "CPU", "--time", "0.2s"]) == 0
    table = capsys.readouterr().out
    assert all(column in table for column in ("compile s", "first ms", "process MB", "GPU MB"))


def test_a_hint_goes_to_the_compiler_by_openvinos_name_and_what_is_out_of_range_is_told() -> None:
    hints = {"tput": "THROUGHPUT", "ctput": "CUMULATIVE_THROUGHPUT", "latency": "LATENCY", "none": None}
    for text, expected in hints.items():
        assert Tuning(hint=text).properties() == {"PERFORMANCE_HINT": expected}
    with pytest.raises(OptionError, match="unknown hint 'fast'; choose one of latency"):
        Tuning(hint="fast")
    with pytest.raises(OptionError, match="nireq must be at least 1, not 0"):
        Tuning(requests=0)


def test_a_number_of_inferences_ends_a_measurement_without_a_time() -> None:
    protocol = Tuning(iterations=25).protocol(None)
    assert protocol.min_rounds == protocol.max_rounds == 10
    assert protocol.turn_runs == 3  # rounded up to whole rounds: 30
    assert protocol.limit_s == math.inf
    few = Tuning(iterations=3).protocol(None)
    assert (few.max_rounds, few.turn_runs) == (3, 1)


def test_with_a_time_too_the_longer_of_both_ends_it() -> None:
    protocol = Tuning(iterations=20).protocol(5.0)
    assert (protocol.limit_s, protocol.min_rounds, protocol.max_rounds) == (5.0, 10, 100_000)
    assert Tuning().protocol(5.0).turn_runs is None
