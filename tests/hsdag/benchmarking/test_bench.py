"""What bench measures: devices by name, those that placements describe, and what each candidate costs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import hsdag
from hsdag.benchmarking.bench import Tuning, in_flight, split_targets
from hsdag.cli.app import run
from hsdag.ir.device import parse_devices
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import read_graph
from hsdag.ir.placement.placement import Placement
from tests.placements import by_hand

PARTS = "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1],C=CPU[INFERENCE_NUM_THREADS=2]"


def answer(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    assert run([*map(str, arguments), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture(scope="module")
def on_a(tiny_resnet: Path) -> Placement:
    """All of tiny_resnet on A, with B and C described but not used."""
    graph = read_graph(tiny_resnet)
    return by_hand(graph, parse_devices(PARTS), ["A"] * graph.num_ops)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("A", "C"), tuple(PARTS.split(",")[::2])])
def test_devices_of_a_placement_are_measured_by_their_names_or_as_it_describes_them(
    tiny_resnet: Path, on_a: Placement, devices: tuple[str, ...]
) -> None:
    result = hsdag.bench(tiny_resnet, {"p": on_a}, devices, time="0.2s")
    assert {row.name for row in result.rows} == {"p", "A", "C"}


def test_another_device_of_the_same_name_is_refused(tiny_resnet: Path, on_a: Placement) -> None:
    with pytest.raises(OptionError, match="p has another device named 'A'"):
        hsdag.bench(tiny_resnet, {"p": on_a}, ["A=CPU[INFERENCE_NUM_THREADS=2]"], time="0.2s")


def test_a_row_says_what_loading_the_candidate_took(tiny_resnet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, "bench", tiny_resnet, "--device", "CPU", "--time", "0.2s")
    (row,) = document["rows"]
    assert row["compile_s"] > 0
    assert row["first_s"] > 0
    assert row["resident_bytes"] > 0
    assert row["device_bytes"] is None  # the CPU's memory is the machine's
    assert run(["bench", str(tiny_resnet), "--device", "CPU", "--time", "0.2s"]) == 0
    table = capsys.readouterr().out
    assert all(column in table for column in ("compile s", "first ms", "process MB", "GPU MB"))


def test_two_names_of_one_device_are_one_device_named_twice() -> None:
    with pytest.raises(OptionError, match="named twice"):
        split_targets(["CPU", "CPU.0"], or_cpu=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("tput", "THROUGHPUT"), ("ctput", "CUMULATIVE_THROUGHPUT"), ("latency", "LATENCY"), ("none", None)],
)
def test_a_hint_goes_to_the_compiler_by_openvinos_name(text: str, expected: str | None) -> None:
    assert Tuning(hint=text).properties() == {"PERFORMANCE_HINT": expected}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hint": "fast"}, "unknown hint 'fast'; choose one of latency"),
        ({"requests": 0}, "--nireq must be at least 1, not 0"),
    ],
)
def test_what_is_out_of_range_is_told(given: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Tuning(**given)  # type: ignore[arg-type]


def test_a_number_of_inferences_ends_a_measurement_without_a_time() -> None:
    protocol = Tuning(iterations=25).protocol(None)
    assert protocol.min_rounds == protocol.max_rounds == 10
    assert protocol.turn_runs == 3  # rounded up to whole rounds: 30
    assert protocol.limit_s == math.inf
    assert in_flight(Tuning(iterations=400).protocol(None)).turn_runs == 10  # of 4 inferences each
    few = Tuning(iterations=3).protocol(None)
    assert (few.max_rounds, few.turn_runs) == (3, 1)


def test_with_a_time_too_the_longer_of_both_ends_it() -> None:
    protocol = Tuning(iterations=20).protocol(5.0)
    assert (protocol.limit_s, protocol.min_rounds, protocol.max_rounds) == (5.0, 10, 100_000)
    assert Tuning().protocol(5.0).turn_runs is None
