"""What bench measures: devices by name, those that placements describe, and what each candidate costs."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import hsdag
from hsdag.base.errors import OptionError
from hsdag.cli.app import run
from hsdag.commands.bench import Tuning, _beside, split_targets
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.graph.build import read_graph
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.placement.placement import SpeedupRecord
from tests.placements import by_hand

PARTS = "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1],C=CPU[INFERENCE_NUM_THREADS=2]"


def test_another_device_of_the_same_name_and_a_device_named_twice_are_refused(tiny_resnet: Path) -> None:
    """All of the model is on A, with B and C described but not used."""
    graph = read_graph(tiny_resnet)
    on_a = by_hand(graph, parse_devices(PARTS), ["A"] * graph.num_ops)
    with pytest.raises(OptionError, match="p has another device named 'A'"):
        hsdag.bench(tiny_resnet, {"p": on_a}, ["A=CPU[INFERENCE_NUM_THREADS=2]"], time="0.2s")
    with pytest.raises(OptionError, match="named twice"):
        split_targets(["CPU", "CPU.0"])


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
    with pytest.raises(OptionError, match="requests must be at least 1, not 0"):
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


def test_a_placement_under_other_settings_is_measured_beside_the_device_as_openvino_sets_it_up(
    tiny_resnet: Path,
) -> None:
    graph = read_graph(tiny_resnet)
    single = DeviceSpec("CPU", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = hsdag.bench(tiny_resnet, {"mine": by_hand(graph, [single], ["CPU"] * graph.num_ops)}, time="1s")
    assert (found.versus, {row.name for row in found.rows}) == ("CPU_default", {"CPU_default", "mine"})


def test_devices_and_a_target_may_come_in_one_list() -> None:
    specs, targets = split_targets(["CPU,AUTO:CPU,GPU"])
    assert ([spec.name for spec in specs], targets) == (["CPU"], ("AUTO:CPU,GPU",))


def test_a_split_is_measured_beside_the_best_single_device_and_the_whole_one_unless_devices_are_named() -> None:
    graph = graph_from_edges(["Parameter", "Relu", "Result"], [(0, 1), (1, 2)])
    split = by_hand(graph, parse_devices(f"{PARTS},CPU"), ["A", "B", "B"])
    known = split.model_copy(update={"speedup": SpeedupRecord(versus="B", ratio=1.2, ci95=(1.1, 1.3))})
    alone = by_hand(graph, parse_devices(f"{PARTS},CPU"), ["A", "A", "A"])
    assert [spec.name for spec in _beside([split])] == ["A", "B", "CPU"]
    assert [spec.name for spec in _beside([known, alone])] == ["B", "CPU"]
    assert not _beside([alone])


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("-pc", "hsdag profile"),
        ("-api", "nothing: latency"),
        ("-nstreams", r"CPU\[NUM_STREAMS=VALUE\]"),
        ("-b", "--shape"),
    ],
)
def test_options_of_benchmark_app_are_named_with_what_replaces_them(
    flag: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "m.xml", flag, "2"]) == 2
    assert re.search(
        rf"^hsdag: {flag} is an option of benchmark_app; in its place .*{instead}",
        capsys.readouterr().err,
    )
